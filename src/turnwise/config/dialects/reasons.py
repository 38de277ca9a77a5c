"""Why a key of another project changes nothing here, in words that many rows share."""

from __future__ import annotations

ONE_MACHINE = "one process on one machine; devices are torch's own choice"
GPU_WORKERS = "arranges work on GPU workers; it changes speed, never the result"
ENGINE_OPTION = "an option of another inference engine"
TOKEN_BATCHES = "micro-batches are cut by tokens: learn.micro_batch_tokens"
REPORTS = "metrics.jsonl, TensorBoard and the console are always written"
ALWAYS_EVALUATED = "every run is evaluated before and after training"
WHOLE_DISTRIBUTION = "tokens are drawn from the whole distribution, which is what the learner scores"
SAMPLER_ONLY = "the learner would score other probabilities than tokens were drawn by; leave it out"
TEMPLATES = "the model's own chat template is read and proven when it is opened"
STRATEGY = "the learner runs in one process"
EXPERIMENT = "names an experiment for its dashboards"
REMOTE_CODE = "models are loaded by transformers without code from their folders"
JUDGE_FUNCTION = "write a function (prompt, response) -> number: reward.judge={type: function, target: module:function}"
