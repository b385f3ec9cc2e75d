# Asynchronous GRPO with slime over sessions of Polar, with NVIDIA's bridge.
#   SLIME: checkout of slime 0.3.0. BRIDGE: folder `src` of NVIDIA's Polar. MODEL_ARGS: slime's arguments of the model.
#   DATA: JSONL with `prompt`, `label` and `metadata` (image, instance). HF, MEGATRON: the checkpoint in both formats.
#   SERVER_IP: address of this machine that the nodes of Polar can reach.
set -eu
config=$(dirname "$0")/polar.yaml

PYTHONPATH=$BRIDGE:${PYTHONPATH:-} python "$SLIME/train_async.py" \
  --rollout-function-path slime_bridge.rollout.generate_rollout_polar_async \
  --custom-rm-path slime_bridge.reward.reward_func \
  --custom-reward-post-process-path slime_bridge.reward_post_process.post_process_rewards \
  --data-source-path slime_bridge.data_source.CeilEpochRolloutDataSourceWithBuffer \
  --custom-config-path "$config" \
  --prompt-data "$DATA" --input-key prompt --label-key label --metadata-key metadata \
  --hf-checkpoint "$HF" --ref-load "$MEGATRON" --load "$MEGATRON" $MODEL_ARGS \
  --rollout-batch-size 4 --n-samples-per-prompt 8 --num-rollout 100 --reward-key score \
  --rollout-max-prompt-len 32000 --rollout-max-response-len 16000 \
  --advantage-estimator grpo --normalize-advantages --use-tis --eps-clip 0.2 --eps-clip-high 0.28 \
  --optimizer adam --lr 1e-6 --update-weights-interval 1 \
  --use-dynamic-batch-size --max-tokens-per-gpu 30000 \
  --sglang-tool-call-parser qwen3_coder --sglang-router-ip "$SERVER_IP" --sglang-router-port 9000 "$@"
