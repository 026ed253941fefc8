"""The part of the catalogue of bad input on external environments: their names, and what goes wrong in them."""

from tests.support.bad_inputs import P, Row

MODULE = "tests.support.strangers"
FORMS = "expected gymnasium:ID, pettingzoo:MODULE, MODULE:FACTORY or FILE.py:FACTORY, then ,ARGUMENT=VALUE."
ENDING = "expected an environment: correct its name or its arguments."
TURNS = (
    "its agents act in turns; expected a parallel environment: name a function of yours that returns "
    "pettingzoo.utils.turn_based_aec_to_parallel(env), or aec_to_parallel(env) where all act before the next step."
)
SEED = "reset takes no seed; expected reset(self, seed=None, options=None): draw all chance from it."
OBSERVE = (
    "return gymnasium.wrappers.TransformObservation(env, FUNCTION, SPACE) from a function of yours, where FUNCTION "
    "makes an observation of SPACE, a smaller Box; a parallel environment returns such ones itself"
)
ACT = (
    "return gymnasium.wrappers.TransformAction(env, FUNCTION, SPACE) from a function of yours, where FUNCTION makes an "
    "action of the environment from one of SPACE, {}; a parallel environment has such an action_space itself"
)


def name(id: str, text: str, message: str) -> Row:
    """Return a row with a name that is refused."""
    return Row(f"external {id}", ["train", "--env", text], message)


def fault(id: str, arguments: str, message: str) -> Row:
    """Return a row with an environment that goes wrong in its third step."""
    own = f"{MODULE}:Meadow,fault={arguments}"
    return Row(f"external {id}", ["check", own], message.replace("NAME", own))


def lost(id: str, arguments: str, why: str) -> Row:
    """Return a row with an environment whose worker is lost in its third step."""
    own, short = f"{MODULE}:Meadow,fault={arguments}", ["--set", "timeout_s=0.3", "--set", "workers=1"]
    message = (
        f"{own}: world 0, step 2, worker 0: the worker was lost, because {why}; expected an answer within "
        "timeout_s=0.3. Set a longer one, or step the environment alone to see why."
    )
    return Row(f"external {id}", ["check", own, *short], message, alone=True)


ROWS = (
    name("form", "mine.py:", f"'mine.py:': {FORMS}"),
    name("argument", "a.b:c,3", "'a.b:c,3': got '3' after a comma; expected ARGUMENT=VALUE."),
    name("list", "a.b:c,n=[1]", "'a.b:c,n=[1]': n is [1]; expected a number, a text, true, false or null."),
    name("id", "gymnasium:CartPol-v1", f"gymnasium:CartPol-v1: making it raised NameNotFound: …; {ENDING}"),
    name(
        "keyword",
        "gymnasium:CartPole-v1,size=3",
        f"gymnasium:CartPole-v1,size=3: making it raised TypeError: …'size'…; {ENDING}",
    ),
    name(
        "module",
        "pettingzoo:mpe2.simple_spred_v3",
        "pettingzoo:mpe2.simple_spred_v3: no module named 'mpe2.simple_spred_v3' (did you mean 'simple_spread_v3'?); "
        "install its package, or correct the name.",
    ),
    name("file", "absent.py:make", "absent.py:make: no file …absent.py; name one that exists, or an absolute path."),
    name(
        "factory",
        f"{MODULE}:absent",
        f"{MODULE}:absent: {MODULE} has no absent; name a function that makes an environment.",
    ),
    name(
        "arguments",
        f"{MODULE}:Meadow,size=3",
        f"{MODULE}:Meadow,size=3: {MODULE}:Meadow takes no 'size'; its arguments: moves, length, fault, at, cut.",
    ),
    name(
        "other thing",
        f"{MODULE}:nothing",
        f"{MODULE}:nothing: made a int; expected an environment of Gymnasium, or a parallel one of PettingZoo: "
        "name a function or class that makes one.",
    ),
    name(
        "turns",
        "mpe2.simple_spread_v3:env",
        f"mpe2.simple_spread_v3:env: {TURNS}",
    ),
    name(
        "turns alone",
        "pettingzoo:pettingzoo.classic.tictactoe_v3",
        f"pettingzoo:pettingzoo.classic.tictactoe_v3: {TURNS}",
    ),
    name(
        "version",
        "pettingzoo:mpe2.simple_spread_v2",
        "pettingzoo:mpe2.simple_spread_v2: no module named 'mpe2.simple_spread_v2' (its versions here: "
        "simple_spread_v3); install its package, or correct the name.",
    ),
    name(
        "long",
        "gymnasium:" + "x" * 5000,
        "'gymnasium:xx…: 5,010 characters; expected at most 1,000: let a function of your own hold the arguments.",
    ),
    name("no seed", "tests.support.foreign:NoSeed", f"tests.support.foreign:NoSeed: {SEED}"),
    Row(
        "external one group",
        ["train", "--env", f"{MODULE}:Meadow", "--set", "groups=all"],
        f"{MODULE}:Meadow: groups=all, but grazer_0 has 3 numbers, 3 moves, masked, and wolf_0 4 numbers, 2 moves; "
        "expected equal spaces: set groups=names or groups=each.",
    ),
    name(
        "switches",
        f"{MODULE}:many_moves",
        f"{MODULE}:many_moves: agent acts in MultiBinary(3); expected Discrete, or Box with bounds: "
        f"{ACT.format('a Discrete of their combinations, or a Box with bounds')}.",
    ),
    name(
        "images",
        f"{MODULE}:huge",
        f"{MODULE}:huge: agent observes 120,000 numbers (…); expected 1 to 20,000: {OBSERVE}.",
    ),
    Row("external twice", ["train", P, "--env", "a:b"], f"got the preset '{P}' and --env 'a:b'; give one of them."),
    fault(
        "raises",
        "raise",
        "NAME: world 0, step 2, worker 0: step raised ValueError: the meadow is closed at strangers.py:…. For "
        "its traceback: `uavlab --traceback check NAME`.",
    ),
    fault(
        "shape",
        "shape",
        "NAME: world 0, step 2, worker 0: grazer_0 observed 2 numbers; expected 3, as its space says: return the same "
        "shape at every step, or correct observation_space.",
    ),
    fault(
        "agents",
        "fewer",
        "NAME: world 0, step 2, worker 0: step returned no reward or end of wolf_0, which had not ended; expected "
        "those of every agent that goes on: keep the agent, and set terminated when it leaves.",
    ),
    lost("hangs", "hang", "it did not answer in time"),
    lost("dies", "die", "it ended with exit code 3"),
    fault(
        "not a number",
        "nan",
        "NAME.transition.reward, step 2 of the random rollout: got a number that is not finite in world 0; "
        "expected finite numbers: guard divisions and roots.",
    ),
    Row(
        "external timeout",
        ["train", "--env", f"{MODULE}:Meadow", "--set", "timeout_s=0"],
        f"{MODULE}:Meadow: timeout_s: input should be greater than 0, got 0 from --set.",
    ),
)
