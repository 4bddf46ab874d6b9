"""The tests that run in `make test-more` instead of `make test`; `tests/conftest.py` marks them.

VARIANTS_KEPT: how many variants of each parametrised test of a file stay in `make test`, evenly
spaced from the first to the last. LEFT_OUT: test functions of which none stays, because they are
slow and a faster test in `make test` covers the same behaviour.
"""

VARIANTS_KEPT = {
    "bench/test_attention.py": 1,
    "bench/test_attention_paths.py": 1,
    "bench/test_attention_work.py": 1,
    "docs/test_code_blocks.py": 1,
    "engine/test_batches.py": 1,
    "engine/test_engine_params.py": 1,
    "engine/test_failed_steps.py": 1,
    "engine/test_families.py": 2,
    "engine/test_parity_tiny.py": 1,
    "engine/test_pool.py": 1,
    "engine/test_pool_memory.py": 1,
    "engine/test_pool_size.py": 1,
    "engine/test_preemption.py": 1,
    "engine/test_prefix_cache.py": 1,
    "engine/test_programs.py": 1,
    "engine/test_requests.py": 1,
    "engine/test_rope_types.py": 1,
    "engine/test_scoring.py": 1,
    "engine/test_seed_cases.py": 1,
    "engine/test_seeds.py": 1,
    "engine/test_shared_blocks.py": 1,
    "engine/test_stopping.py": 1,
    "kernels/test_mosaic_decode.py": 1,
    "kernels/test_one_byte_formats.py": 1,
    "kernels/test_triton_kernels.py": 1,
    "kernels/test_xla_decode.py": 1,
    "kernels/test_xla_options.py": 1,
    "kernels/test_xla_prefill.py": 1,
    "kernels/test_xla_programs.py": 1,
    "kernels/test_xla_write.py": 1,
    "layers/test_attention_choice.py": 1,
    "layers/test_kv_cache.py": 1,
    "layers/test_kv_dtypes.py": 1,
    "layers/test_layer_kernels.py": 2,
    "sample/test_distribution.py": 1,
    "sample/test_draw.py": 1,
    "sample/test_engine_logprobs.py": 1,
    "sample/test_filters.py": 1,
    "sample/test_logits_processor.py": 1,
    "sample/test_ranking.py": 2,
    "sample/test_sampler.py": 1,
    "sample/test_sampling_options.py": 1,
    "sample/test_token_logprobs.py": 1,
    "sample/test_uniform.py": 1,
    "schedule/test_abort.py": 1,
    "schedule/test_limits.py": 1,
    "schedule/test_preemption.py": 1,
    "schedule/test_scheduler.py": 1,
    "schedule/test_scoring.py": 1,
    "search/test_beam_scheduling.py": 1,
    "search/test_beam_search.py": 2,
    "step/test_batch_invariance.py": 1,
    "text/test_transcript.py": 2,
    "weights/test_checkpoint.py": 2,
}

LEFT_OUT = {
    # Each runs a benchmark command; those of throughput, latency and memory stay.
    "bench/test_attention.py": ["test_a_small_run"],
    "bench/test_parity.py": ["test_a_small_run"],
    "bench/test_sampling.py": ["test_a_small_run"],
    "bench/test_scaling.py": ["test_a_small_run"],
    "bench/test_scoring.py": ["test_a_small_run"],
    # That the quickstart runs stays, in test_command_line.py.
    "docs/test_code_blocks.py": ["test_the_quickstart_prints_what_the_readme_shows"],
    # The test of an engine whose params are on another device stays.
    "devices/test_mesh.py": [
        "test_axes_of_any_type",
        "test_params_on_an_explicit_mesh_are_not_copied",
    ],
    # The known ids of one seed in test_seed_cases.py stay.
    "engine/test_determinism.py": ["test_two_processes_agree_bit_for_bit"],
    # A small pool in the params' dtype stays.
    "engine/test_pool.py": ["test_a_pool_in_another_dtype_than_the_params"],
    # Preemption in a pool for one request, and of the newest request, stay.
    "engine/test_preemption.py": [
        "test_two_requests_that_force_a_preemption_equal_a_large_pool",
    ],
    # Windows without preemption stay.
    "engine/test_families.py": [
        "test_windows_with_preemption_prefix_hits_and_other_requests",
    ],
    # Scoring beside running requests stays.
    "engine/test_scoring.py": ["test_scoring_leaves_nothing_in_the_prefix_cache"],
    # One seed in all places of an engine stays.
    "engine/test_seed_cases.py": ["test_draws_depend_on_seed_sample_and_position_alone"],
    # A seeded request beside others stays.
    "engine/test_seeds.py": [
        "test_a_seeded_request_is_the_same_after_preemption_and_in_chunks",
    ],
    # Samples that share blocks in a large pool stay.
    "engine/test_shared_blocks.py": ["test_a_small_pool_does_not_change_n_samples"],
    # Greedy ids of this model and log probabilities of tiny models stay.
    "engine/test_smollm2_scores.py": ["test_logprobs_equal_hugging_face"],
    # Tests that switch to 64-bit types later stay, in test_callers.py.
    "engine/test_x64.py": ["test_x64_set_before_the_import_changes_no_result"],
    # All check one run of 500 requests; the soak in test_preemption.py stays.
    "engine/test_traffic.py": [
        "test_every_request_of_random_traffic_finishes",
        "test_random_traffic_covers_every_event_and_program",
        "test_jax_compiles_nothing_under_random_traffic",
        "test_seeded_requests_of_random_traffic_repeat_alone",
    ],
    # All check programs that one child process per GPU compiles, which takes minutes.
    "kernels/test_aot.py": [
        "test_nothing_large_is_copied",
        "test_temporaries_are_bounded",
        "test_pools_are_updated_in_place",
        "test_devices_exchange_only_sums_of_hidden_states",
        "test_no_pool_leaves_its_device",
        "test_kernels_fit_the_gpu",
        "test_launches_per_layer",
    ],
    "layers/test_kv_cache.py": ["test_no_program_copies_or_converts_the_pool"],
    # The same of pools in the params' type stay, in test_pool.py and test_batches.py.
    "layers/test_kv_dtypes.py": [
        "test_tokens_are_the_same_alone_and_in_a_batch",
        "test_a_small_pool_and_small_chunks_change_no_token",
        "test_logprobs_do_not_depend_on_the_chunks",
        "test_a_prefix_hit_changes_no_token",
        "test_a_fork_continues_as_its_parent_does",
    ],
    # The other test of the distribution stays.
    "sample/test_distribution.py": ["test_draws_pass_the_chi_square_test"],
    # max_logprobs beyond the vocabulary stays, and processed log probabilities in test_sampler.py
    # and test_token_logprobs.py, and scores in test_parity_tiny.py.
    "sample/test_engine_logprobs.py": [
        "test_a_vocabulary_smaller_than_max_logprobs",
        "test_prompt_logprobs_survive_preemption_and_samples",
        "test_processed_logprobs_are_those_of_the_draw",
        "test_sampled_and_scored_logprobs_agree",
    ],
    # Draws in every row bucket stay.
    "sample/test_sampler.py": ["test_uniforms_and_tokens_are_the_same_bits_on_four_devices"],
    # Penalties without preemption stay.
    "sample/test_sampling_options.py": [
        "test_penalties_survive_preemption_and_slots_change_hands",
    ],
    # One row alone and among others stays.
    "step/test_batch_invariance.py": [
        "test_shapes_with_other_results_are_left_out",
        "test_neighbours_with_every_option_change_no_bit",
    ],
    "test_command_line.py": ["test_json_and_stats"],
    "text/test_stopped_requests.py": ["test_preemption_and_the_prefix_cache_change_no_text"],
}
