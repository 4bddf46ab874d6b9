"""Which tests `make test` leaves to `make test-more`; `tests/conftest.py` marks them `more`.

The first table thins products of variants: of each test function of the file, that many variants
stay in `make test`, the first and the last among them. The second names functions that are left
out whole, for they are long and what they look at has a shorter or plainer test that stays.
"""

VARIANTS_KEPT = {
    "bench/test_attention.py": 1,
    "bench/test_attention_paths.py": 1,
    "bench/test_attention_work.py": 1,
    "engine/test_engine.py": 1,
    "engine/test_parity_tiny.py": 1,
    "engine/test_prefix_cache.py": 1,
    "engine/test_serving_cases.py": 1,
    "kernels/test_mosaic_decode.py": 1,
    "kernels/test_triton_kernels.py": 1,
    "kernels/test_xla_attention.py": 1,
    "layers/test_kv_dtypes.py": 1,
    "layers/test_layer_kernels.py": 2,
    "sample/test_ranking.py": 2,
    "sample/test_sampler.py": 1,
    "sample/test_sampling_options.py": 1,
    "sample/test_token_logprobs.py": 1,
    "schedule/test_scheduler.py": 1,
    "search/test_beam_scheduling.py": 1,
    "search/test_beam_search.py": 2,
    "step/test_batch_invariance.py": 1,
    "step/test_xla_options.py": 1,
    "text/test_transcript.py": 2,
    "weights/test_checkpoint.py": 2,
}

LEFT_OUT = {
    # Each is a run of a benchmark's command; those of throughput, latency and memory stay.
    "bench/test_attention.py": ["test_a_small_run"],
    "bench/test_parity.py": ["test_a_small_run"],
    "bench/test_sampling.py": ["test_a_small_run"],
    "bench/test_scaling.py": ["test_a_small_run"],
    "bench/test_scoring.py": ["test_a_small_run"],
    # An engine whose params are on a mesh stays.
    "devices/test_mesh.py": [
        "test_axes_of_any_type",
        "test_params_on_an_explicit_mesh_are_not_copied",
    ],
    # Known ids of one seed stay, in test_serving_cases.py.
    "engine/test_determinism.py": ["test_two_processes_agree_bit_for_bit"],
    # A small pool, a seed beside others, and scores beside running requests stay.
    "engine/test_engine.py": [
        "test_a_seeded_request_is_the_same_after_preemption_and_in_chunks",
        "test_scoring_leaves_nothing_in_the_prefix_cache",
        "test_a_pool_in_another_dtype_than_the_params",
    ],
    # Preemption in a pool for one and of the newest, and forks of samples, stay.
    "engine/test_prefix_cache.py": [
        "test_two_requests_that_force_a_preemption_equal_a_large_pool",
        "test_a_small_pool_does_not_change_n_samples",
    ],
    "engine/test_serving_cases.py": ["test_draws_depend_on_seed_sample_and_position_alone"],
    # Greedy ids of this model stay, and log probabilities of tiny models.
    "engine/test_smollm2_scores.py": ["test_logprobs_equal_hugging_face"],
    # All look at one run of 500 requests; the soak of test_prefix_cache.py stays.
    "engine/test_traffic.py": [
        "test_every_request_of_random_traffic_finishes",
        "test_random_traffic_reaches_what_it_is_meant_to_reach",
        "test_jax_compiles_nothing_under_random_traffic",
        "test_seeded_requests_of_random_traffic_repeat_alone",
    ],
    # All look at what one child process for each GPU compiles, which takes minutes.
    "kernels/test_aot.py": [
        "test_nothing_large_is_copied",
        "test_temporaries_are_bounded",
        "test_pools_are_updated_in_place",
        "test_devices_exchange_the_sums_of_hidden_states_alone",
        "test_no_pool_leaves_its_device",
        "test_kernels_fit_the_gpu",
        "test_launches_per_layer",
    ],
    # The same of pools in the params' type stay, in test_engine.py and test_serving_cases.py.
    "layers/test_kv_dtypes.py": [
        "test_tokens_are_the_same_alone_and_in_a_batch",
        "test_a_small_pool_and_small_chunks_change_speed_and_never_tokens",
        "test_no_program_copies_or_converts_the_pool",
        "test_logprobs_do_not_depend_on_the_chunks",
        "test_a_prefix_hit_changes_no_token",
        "test_a_fork_goes_on_as_its_parent_does",
    ],
    # Draws in any row bucket stay, and the other test of their distribution.
    "sample/test_sampler.py": [
        "test_uniforms_and_tokens_are_the_same_bits_on_four_devices",
        "test_draws_pass_the_chi_square_test",
    ],
    # The same without preemption stays; more log probabilities than tokens; the processed ones in
    # test_sampler.py and test_token_logprobs.py; scores in test_parity_tiny.py.
    "sample/test_sampling_options.py": [
        "test_a_vocabulary_smaller_than_max_logprobs",
        "test_penalties_survive_preemption_and_slots_change_hands",
        "test_prompt_logprobs_survive_preemption_and_samples",
        "test_processed_logprobs_are_those_of_the_draw",
        "test_sampled_and_scored_logprobs_agree",
    ],
    # One row alone and among others stays.
    "step/test_batch_invariance.py": [
        "test_shapes_of_other_bits_are_left_out",
        "test_neighbours_with_every_option_change_no_bit",
    ],
    "test_command_line.py": ["test_json_and_stats"],
    "text/test_stop_strings.py": ["test_preemption_and_the_prefix_cache_change_no_text"],
}
