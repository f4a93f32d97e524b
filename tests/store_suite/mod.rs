//! The conformance suite: what every store must do, as facts. Each fact is written once, against `dyn Store`; a store
//! joins by a [`Fixture`] and one line with [`conformance!`].

pub(crate) mod adjustments;
pub(crate) mod bulk;
pub(crate) mod concurrency;
pub(crate) mod erasure;
pub(crate) mod expiry;
pub(crate) mod identity;
pub(crate) mod life;
pub(crate) mod money;
pub(crate) mod reading;
pub(crate) mod reinstating;
pub(crate) mod window;
pub(crate) mod world;

/// Makes a test of every fact for one fixture. A fact that is not listed is dead code, which the lints refuse.
#[macro_export]
macro_rules! conformance {
    ($fixture:ty: $($module:ident: $($fact:ident)+;)+) => {
        $(mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $fact() {
                    $crate::store_suite::$module::$fact::<$fixture>().await;
                }
            )+
        })+
    };
    ($fixture:ty) => {
        $crate::conformance! { $fixture:
            window:
                a_poll_credits_what_was_found_and_says_the_new_balance
                a_find_on_the_last_millisecond_is_credited
                a_find_one_millisecond_past_its_window_expires
                a_find_is_credited_once_however_often_is_polled
                one_poll_credits_all_finds_in_their_order
                a_poll_with_nothing_to_collect_changes_nothing
                the_windows_of_two_hunts_are_their_own
                players_do_not_see_one_anothers_finds;
            expiry:
                a_find_of_a_player_who_never_polls_expires_within_ten_seconds
                many_players_who_never_poll_all_expire
                the_sweeper_leaves_what_can_still_be_credited
                what_runs_out_while_the_store_is_down_expires_by_outage
                what_ran_out_before_the_store_went_down_expires_by_its_window
                a_find_survives_a_restart_within_its_window
                a_step_of_the_clock_is_an_outage
                a_small_step_of_the_clock_is_none;
            identity:
                a_once_only_treasure_is_found_once
                an_id_sent_for_a_once_only_treasure_is_ignored
                a_repeatable_treasure_needs_an_id
                the_same_id_is_the_same_find_and_another_id_another
                the_same_id_for_other_content_is_a_conflict
                the_two_kinds_of_id_are_separate_namespaces
                ids_are_scoped_to_hunt_and_player
                a_repeat_is_answered_first_also_after_the_hunt_has_closed
                a_repeat_after_the_credit_adds_nothing
                an_id_is_forgotten_after_its_time_and_a_treasure_never
                an_id_used_again_after_its_time_is_remembered_anew
                an_unknown_treasure_is_refused
                a_repeat_survives_a_restart;
            bulk:
                coins_without_a_treasure_need_an_id_and_share_their_content
                each_find_of_a_batch_has_its_own_outcome
                the_same_find_twice_in_a_batch_is_recorded_once
                a_back_dated_find_keeps_its_own_window
                a_find_dated_past_its_window_is_recorded_as_expired
                a_late_find_leaves_the_other_pending_finds_alone
                a_find_a_second_ahead_is_taken_as_now_and_further_ahead_is_refused
                a_batch_sent_again_adds_nothing
                an_empty_batch_is_answered
                a_find_of_an_unknown_hunt_is_refused;
            money:
                the_largest_balance_is_two_to_the_53_less_one
                what_is_pending_counts_against_the_limit
                the_hunts_total_is_limited_too
                a_refused_find_leaves_nothing_behind
                a_treasure_worth_nothing_can_be_found
                a_player_has_so_many_pending_finds_and_no_more;
            life:
                a_draft_takes_no_finds
                the_times_open_and_close_a_hunt
                a_closed_hunt_takes_no_finds_and_polls_go_on
                a_closed_hunt_can_be_opened_again
                a_hunt_with_something_pending_cannot_be_archived
                a_pending_find_worth_nothing_holds_back_archiving
                an_archived_hunt_is_over
                every_change_moves_the_generation_and_nothing_else_does
                a_found_treasure_cannot_be_removed_or_change_its_kind
                a_changed_treasure_leaves_finds_already_made_alone
                a_hunt_survives_a_restart
                an_unknown_hunt_is_said_to_be_unknown;
            adjustments:
                a_grant_and_a_revocation_move_the_balance_and_the_sums
                the_same_key_is_the_same_adjustment
                the_same_key_for_another_adjustment_is_a_conflict
                keys_are_scoped_to_the_player
                a_revocation_of_more_than_the_balance_is_refused
                adjustments_out_of_range_are_refused
                a_key_is_remembered_for_the_hunts_whole_life
                a_closed_hunt_can_be_adjusted_and_an_archived_one_cannot;
            reinstating:
                what_was_lost_to_an_outage_is_credited_once
                only_what_ran_out_within_the_range_is_reinstated
                what_expired_by_its_window_is_not_reinstated
                a_balance_out_of_range_is_refused_and_can_be_tried_again
                hundreds_of_finds_are_reinstated_in_one_go;
            erasure:
                an_erased_name_is_nowhere_in_the_store
                an_older_token_opens_nothing
                a_newer_token_opens_a_new_number
                nobody_else_recreates_an_erased_player
                what_is_pending_is_revoked_in_all_hunts_and_the_sums_stay
                a_find_for_the_old_number_is_refused
                erasing_somebody_unknown_is_no_error_and_holds
                erasing_survives_a_restart
                a_player_is_erased_as_often_as_there_is_a_new_one;
            reading:
                opening_a_player_again_gives_the_same_number
                history_is_paged_from_the_newest
                a_wallets_sequence_grows_by_one_an_entry
                an_export_has_every_wallet_and_every_entry
                an_export_that_nobody_reads_ends
                the_audit_covers_all_hunts_or_one
                hunts_lists_each_hunt_with_its_totals
                the_feed_tells_of_wallets_hunts_and_erasures_in_order
                there_is_one_feed
                the_store_is_up_and_its_clock_does_not_run_backwards;
            concurrency:
                one_treasure_found_by_many_callers_at_once_is_recorded_once
                many_pollers_of_one_player_credit_each_find_once
                many_players_at_once_add_up
                dropping_a_future_does_not_undo_the_work
                a_batch_with_a_refusal_does_not_hold_back_the_others;
        }
    };
}
