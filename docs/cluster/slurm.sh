#!/bin/bash
# A Ray cluster inside of a Slurm allocation, and a run on it: sbatch docs/cluster/slurm.sh my_run.yaml
#SBATCH --job-name=posttrain
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-task=8
#SBATCH --time=24:00:00
set -euo pipefail

config=$1
port=6379
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}'):$port

# One task on each node, all in the environment that holds posttrain[ray]. `--block` keeps them until the job ends.
srun --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --port="$port" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
sleep 20
if ((${#nodes[@]} > 1)); then
    others=$(IFS=,; echo "${nodes[*]:1}")
    srun --nodes=$((${#nodes[@]} - 1)) --ntasks=$((${#nodes[@]} - 1)) --nodelist="$others" \
        ray start --address="$address" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
fi

# The trainer runs here, in the batch script on the first node. A job that was requeued goes on where it stopped.
output=$SLURM_SUBMIT_DIR/runs/$SLURM_JOB_ID
if [ -e "$output/config.yaml" ]; then
    RAY_ADDRESS=$address posttrain resume "$output"
else
    RAY_ADDRESS=$address posttrain train "$config" --cluster auto --output "$output"
fi
