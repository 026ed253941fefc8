#!/bin/sh
# Make records in figures/records/ again. Run it in the root of the repository, with .venv active:
#
#     sh tools/records.sh bench_update quick    the records of these names
#     sh tools/records.sh all                   every record but those of ended studies; it takes days
#
# A name is the word after `want` or `ended` below; records that share trainings have one name. Commit first, so that
# no record is made by code that no commit holds (`dirty`). Use an otherwise idle machine; `load` in a record says how
# idle it was. A record holds its machine, its commit and the command that made it; the records of claims and proofs
# hold a commit for each row. Nothing makes literature.json, the figures of other programs and publications.
set -e
export OMP_NUM_THREADS=1
wanted=" $* "
found=
named() { case "$wanted" in *" $1 "*) found=1 ;; *) return 1 ;; esac; }
want() { named all || named "$1"; }
ended() { named "$1"; }  # the code is in the commit of the record alone: `git checkout` that commit first

want bench_update && uavlab bench update --rounds 50 --out figures/records/bench_update.json
want bench_env && uavlab bench env --rounds 50 --out figures/records/bench_env.json
want bench_guard && uavlab bench guard --rounds 100 --out figures/records/bench_guard.json
want bench_ladder && uavlab bench ladder --rounds 50 --threads 1 --out figures/records/bench_ladder.json
want bench_replay && uavlab bench replay --rounds 200 --out figures/records/bench_replay.json
want bench_maps && uavlab bench maps --rounds 10 --out figures/records/bench_maps.json
want bench_missions && uavlab bench missions --rounds 10 --out figures/records/bench_missions.json
want bench_learning && uavlab bench learning --out figures/records/bench_learning.json
want bench_interval && uavlab bench interval --rounds 12 --ranks 2 --out figures/records/bench_interval.json
want bench_ranks && uavlab bench ranks --rounds 12 --out figures/records/bench_ranks.json
want bench_scale && uavlab bench scale --rounds 30 --device cpu --out figures/records/bench_scale.json
want bench_telemetry && uavlab bench telemetry --rounds 20 --out figures/records/bench_telemetry.json
want quick_laptop && uavlab bench learning --sets laptop --goal 0.9 --out figures/records/quick_laptop.json
want profile_quick && uavlab profile leader_follower_quick --all --out figures/records/profile_quick.json
want claims && uavlab claims --all
want peers && python -m tools.peers --rounds 20 --out figures/records/peers.json
want peers_learning && python -m tools.peers.learning --seeds 3 --minutes 10 --out figures/records/peers_learning.json

# Trainings of hours; a second call of a study goes on where the first one ended.
want bench_curriculum &&
  uavlab bench curriculum --presets leader_follower_curriculum --presets assignment_curriculum_quick --minutes 10 \
    --out figures/records/bench_curriculum.json
if want bench_learners; then
  uavlab bench learners --device cpu --out figures/records/bench_learners.json
  python -m tools.learners
fi

if want quick; then
  for s in 0 1 2 3 4; do uavlab train leader_follower_quick --seed $s --out runs/quick$s; done
  uavlab evaluate runs/quick? --episodes 200 --out figures/records/quick.json
fi
if want quick_12_minutes; then
  for s in 0 1 2; do uavlab train leader_follower_quick --minutes 12 --seed $s --out runs/long$s; done
  uavlab evaluate runs/long? --episodes 500 --out figures/records/quick_12_minutes.json
fi
if want mappo; then
  for s in 0 1 2; do uavlab train leader_follower_mappo --seed $s --out runs/mappo$s; done
  uavlab evaluate runs/mappo? --episodes 500 --out figures/records/mappo.json
fi
if want published; then
  for s in 0 1 2 3 4; do uavlab train leader_follower_published --seed $s --out runs/published$s; done
  uavlab evaluate runs/published? --episodes 500 --out figures/records/published_sampled.json
  uavlab evaluate runs/published? --episodes 500 --mean-action --out figures/records/published_mean.json
  uavlab transfer runs/published0 --sizes 1,2,4,8,16 --policy steer --episodes 1000 \
    --out figures/records/transfer_leader_follower.json
fi
if want steer; then
  for p in published quick; do
    uavlab evaluate leader_follower_$p --policy steer --episodes 500 --out figures/records/${p}_steer.json
  done
fi

if want mapping_quick; then
  for s in 0 1 2; do uavlab train mapping_quick --seed $s --out runs/mapping$s; done
  uavlab evaluate runs/mapping? --episodes 50 --out figures/records/mapping_quick.json
fi
if want mapping_mappo; then
  for s in 0 1 2; do uavlab train mapping_mappo --seed $s --out runs/mapping_mappo$s; done
  uavlab evaluate runs/mapping_mappo? --episodes 50 --out figures/records/mapping_mappo.json
fi
if want mapping_plans; then
  for p in random sweep information_gain expected_entropy; do
    uavlab evaluate mapping_quick --policy $p --episodes 50 --out figures/records/mapping_$p.json
  done
fi

if want transfer; then
  stages="--stages assignment_curriculum --mean-action"
  for s in 0 1 2; do
    uavlab train assignment_quick --seed $s --out runs/assignment$s
    uavlab transfer runs/assignment$s $stages --policy greedy --episodes 1000 --out figures/records/transfer_$s.json
  done
  uavlab transfer runs/assignment0 --sizes 2,4,8,16,32 --mean-action --policy greedy --episodes 1000 \
    --out figures/records/transfer_sizes.json
  for what in near=4 jitter=0 positions=false; do
    uavlab train assignment_quick --seed 0 --set $what --out runs/${what%=*}
    uavlab transfer runs/${what%=*} $stages --policy greedy --episodes 1000 \
      --out figures/records/transfer_${what%=*}.json
  done
fi

if want telemetry_full; then
  for s in 0 1 2; do uavlab train telemetry_full --toggles laptop --seed $s --out runs/telemetry$s; done
  uavlab evaluate runs/telemetry? --out figures/records/telemetry_full.json
  uavlab evaluate telemetry_full --policy ridge --out figures/records/telemetry_ridge.json
fi
if want telemetry_tenth; then
  tenth="--toggles laptop --seed 0 --runs 5 --set used=0.1 --updates 2000 --minutes 60 --set evaluate_every=250"
  uavlab train telemetry_full $tenth --set physics=0 --out runs/tenth
  uavlab train telemetry_full $tenth --set physics=0.1 --out runs/physics
  for r in tenth physics; do uavlab evaluate runs/$r --out figures/records/telemetry_$r.json; done
fi

ended bench_plan && uavlab bench plan --device cpu --out figures/records/bench_plan.json
ended formation_bound && uavlab bench formation --device cpu --out figures/records/formation_bound.json
ended bench_interval_learning && uavlab bench interval_learning --out figures/records/bench_interval_learning.json
ended bench_live && uavlab bench live --rounds 12 --out figures/records/bench_live.json
ended bench_external && uavlab bench external --rounds 12 --out figures/records/bench_external.json
ended bench_monitor && uavlab bench monitor --rounds 30 --out figures/records/bench_monitor.json
ended bench_runs && uavlab bench runs --rounds 50 --out figures/records/bench_runs.json
ended bench_resolution && uavlab bench resolution --updates 200 --rounds 12 --out figures/records/bench_resolution.json
ended defaults && python -m tools.defaults --out figures/records/defaults.json
ended harm && python -m uavlab_lab.lessons.harm --out figures/records/harm.json
ended transfer_solver &&
  uavlab transfer runs/assignment0 --stages assignment_curriculum --mean-action --policy solver --episodes 20 \
    --out figures/records/transfer_solver.json

# Figures of docs/reliability.md; a second call of the soak skips the cases that passed.
if want proofs; then
  pytest -m "not soak" --figures figures/records/proofs.json $(grep -rlE "\bproof\(" tests --include="test_*.py")
  python tools/soak.py --figures figures/records/proofs.json
fi

[ "$found" ] || { echo "usage: sh tools/records.sh all | NAME...; the names stand in this file" >&2; exit 2; }
python -m tools.tables --write
