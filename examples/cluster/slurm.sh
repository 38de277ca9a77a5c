#!/bin/bash
# One Ray cluster over the nodes of a Slurm job, and one run on it. Submit with: sbatch examples/cluster/slurm.sh
# The working folder must be on a file system that all nodes share: the directory of the run is made there.
#SBATCH --job-name=turnwise
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=08:00:00
set -euo pipefail

port=6379
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=${nodes[0]}
address="$head:$port"
export RAY_USAGE_STATS_ENABLED=0

srun --nodes=1 --ntasks=1 --nodelist="$head" \
  ray start --head --node-ip-address="$head" --port="$port" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
sleep 15
for node in "${nodes[@]:1}"; do
  srun --nodes=1 --ntasks=1 --nodelist="$node" \
    ray start --address="$address" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
done
sleep 15

# On the head node: the command shows its progress in the job's output. One learner, and explorers on what is left.
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
  turnwise train frozenlake \
  loop.type=pipelined \
  cluster.type=ray \
  cluster.address="$address" \
  cluster.explorers=5 \
  cluster.explorer_cpus=8 \
  cluster.learner_cpus=8 \
  report.checkpoint_every=20
