//! Pages: what is read is at least what was written.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::upstream::admission::budget::Budget;
use crate::upstream::admission::restrictions::{HostCooldown, HostName};
use crate::upstream::admission::{Rates, Reserve};

const NAME: [u8; 16] = [3; 16];
const BOOT: BootId = [5; 16];

/// A moment on the clock of a process, whose zero is unlike that of others.
fn stamp(millis: u64, process: u64) -> Stamp {
    Stamp {
        since_boot: Duration::from_millis(millis),
        now: moment(millis, process),
    }
}

fn moment(millis: u64, process: u64) -> Moment {
    Moment::from_nanos((1 << 50) - (process << 42)) + Duration::from_millis(millis)
}

fn read_at(page: &[u8], millis: u64, process: u64) -> EarlierSpending {
    read(page, Some(&BOOT), stamp(millis, process)).unwrap().1
}

#[test]
fn a_page_has_requests_in_flight_and_those_that_have_ended() {
    let mut spending = Spending::default();
    for at in [1000, 1040, 1260, 1270] {
        spending.take();
        spending.end(moment(at, 0));
    }
    spending.take();
    let page = spending.page(&Restrictions::default(), &NAME, &BOOT, stamp(1300, 0));
    let (name, _) = read(&*page, Some(&BOOT), stamp(1300, 0)).unwrap();
    assert_eq!(name, NAME);
    let found = read_at(&*page, 5000, 1);
    assert_eq!(found.interrupted, 1);
    assert_eq!(found.unknown_before, None);
    assert_eq!(found.requests(), 5);
    // Each at the end of its step, no later than the page was written.
    let step = nanos(STEP);
    let rounded = |millis: u64| {
        let end = (moment(millis, 0).nanos() / step + 1) * step;
        let end = end.min(moment(1300, 0).nanos());
        Moment::from_nanos(end - moment(0, 0).nanos() + moment(0, 1).nanos())
    };
    let mut expected: VecDeque<(Moment, u64)> = VecDeque::new();
    for at in [1000, 1040, 1260, 1270] {
        match expected.back_mut().filter(|last| last.0 == rounded(at)) {
            Some(last) => last.1 += 1,
            None => expected.push_back((rounded(at), 1)),
        }
    }
    assert_eq!(expected, found.ended);
}

#[test]
fn time_in_which_the_machine_sleeps_is_no_reason_to_forget() {
    let mut spending = Spending::default();
    spending.take();
    spending.end(moment(1000, 0));
    // It slept for an hour before the page was written: its age is not known better.
    let hour = Duration::from_hours(1);
    let mut at = stamp(2000, 0);
    at.since_boot += hour;
    let page = spending.page(&Restrictions::default(), &NAME, &BOOT, at);
    let mut later = stamp(3000, 1);
    later.since_boot += hour;
    let found = read(&*page, Some(&BOOT), later).unwrap().1;
    assert!(found.ended[0].0 >= moment(1000, 1));
    // And for an hour afterwards.
    later.since_boot += hour;
    let found = read(&*page, Some(&BOOT), later).unwrap().1;
    assert!(moment(3000, 1).since(found.ended[0].0) > hour);
}

#[test]
fn a_page_that_cannot_be_trusted_says_nothing() {
    let page = Spending::default().page(&Restrictions::default(), &NAME, &BOOT, stamp(1000, 0));
    let of = |page: &[u8], boot: Option<&BootId>, millis| {
        read(page, boot, stamp(millis, 0)).map(|(name, _)| name)
    };
    assert_eq!(of(&*page, Some(&BOOT), 1000), Ok(NAME));
    for (boot, millis) in [(Some([6; 16]), 2000), (None, 2000), (Some(BOOT), 999)] {
        let found = of(&*page, boot.as_ref(), millis);
        assert_eq!(found, Err(Unreadable::OtherBoot));
    }
    assert_eq!(of(&[0; PAGE], Some(&BOOT), 2000), Err(Unreadable::Empty));
    for length in [0, 1, PAGE - 1] {
        let found = of(&page[..length], Some(&BOOT), 2000);
        let expected = match length {
            0 => Unreadable::Empty,
            _ => Unreadable::Damaged,
        };
        assert_eq!(found, Err(expected), "{length}");
    }
    for at in (0..BODY + DIGEST).step_by(7) {
        let mut damaged = page.clone();
        damaged[at] ^= 0x10;
        let found = of(&*damaged, Some(&BOOT), 2000);
        assert_eq!(found, Err(Unreadable::Damaged), "{at}");
    }
    // A torn page: the end of the one before.
    let mut spent = Spending::default();
    spent.take();
    let next = spent.page(&Restrictions::default(), &NAME, &BOOT, stamp(1001, 0));
    for at in [42, 57, 512, BODY + 1] {
        let mut torn = next.clone();
        torn[at..].copy_from_slice(&page[at..]);
        assert_eq!(
            of(&*torn, Some(&BOOT), 2000),
            Err(Unreadable::Damaged),
            "{at}"
        );
    }
}

#[test]
fn an_unknown_past_is_waited_out_once() {
    let rates = Rates::of(60, 5);
    let earlier = EarlierSpending::unknown_before(moment(1000, 0));
    let mut budget = Budget::after(rates, &earlier, moment(1000, 0));
    assert_eq!(budget.remaining(moment(1000, 0)), Some(0));
    let wait = |budget: &mut Budget, at| budget.wait(at, Reserve::Nothing);
    let whole = Duration::from_millis(61_050);
    assert_eq!(wait(&mut budget, moment(1000, 0)), Some(whole));
    // A process that starts meanwhile does not begin anew.
    let page = budget.spending().unwrap();
    let page = page.page(&Restrictions::default(), &NAME, &BOOT, stamp(11_000, 0));
    let found = read_at(&*page, 31_000, 1);
    let mut budget = Budget::after(rates, &found, moment(31_000, 1));
    let left = Duration::from_millis(31_050);
    assert_eq!(wait(&mut budget, moment(31_000, 1)), Some(left));
    assert_eq!(wait(&mut budget, moment(62_050, 1)), None);
    assert_eq!(budget.remaining(moment(62_050, 1)), Some(60));
    // Without a limit a minute, the second is waited out; without any, nothing.
    let mut second = Budget::after(Rates::of(0, 5), &found, moment(31_000, 1));
    assert_eq!(wait(&mut second, moment(31_000, 1)), None);
    let mut second = Budget::after(Rates::of(0, 5), &earlier, moment(1000, 0));
    let expected = Some(Duration::from_millis(2005));
    assert_eq!(wait(&mut second, moment(1000, 0)), expected);
    let mut none = Budget::after(Rates::of(0, 0), &earlier, moment(1000, 0));
    assert_eq!(wait(&mut none, moment(1000, 0)), None);
}

/// What happens, after so many milliseconds.
#[derive(Clone, Debug)]
enum Step {
    /// As many requests as the budget allows are sent.
    Flood,
    /// The oldest request in flight is answered.
    Answer,
    /// The page is written.
    Write,
    /// The process is killed, and another one starts this much later.
    Kill(u64),
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let step = prop_oneof![
        4 => Just(Step::Flood),
        4 => Just(Step::Answer),
        1 => Just(Step::Write),
        2 => (0..3000_u64).prop_map(Step::Kill),
    ];
    proptest::collection::vec((0..2500_u64, step), 1..120)
}

proptest! {
    /// Whatever the moments of kills, and of the upstream's counting between a
    /// request's sending and its answer, or a second after the next process's start:
    /// no window has more requests than the limit.
    #[test]
    fn no_window_is_exceeded_over_restarts(steps in steps(), count_late in any::<bool>()) {
        let rates = Rates::of(12, 4);
        let (mut now, mut process) = (1000, 0);
        let mut budget = Budget::after(rates, &EarlierSpending::default(), moment(now, 0));
        let mut page = budget.spending().unwrap().page(&Restrictions::default(), &NAME, &BOOT, stamp(now, 0));
        // When each request that is in flight was sent; when others were counted.
        let (mut in_flight, mut counted) = (VecDeque::new(), Vec::new());
        for (pause, step) in steps {
            now += pause;
            match step {
                Step::Flood => {
                    while budget.take(moment(now, process), Reserve::Nothing).is_ok() {
                        in_flight.push_back(now);
                    }
                    // Before anything is sent.
                    page = budget.spending().unwrap().page(&Restrictions::default(), &NAME, &BOOT, stamp(now, process));
                }
                Step::Answer => {
                    if let Some(sent) = in_flight.pop_front() {
                        counted.push(if count_late { now } else { sent });
                        budget.end(moment(now, process));
                    }
                }
                Step::Write => {
                    page = budget.spending().unwrap().page(&Restrictions::default(), &NAME, &BOOT, stamp(now, process));
                }
                Step::Kill(pause) => {
                    now += pause;
                    process += 1;
                    // What lay in the server's buffers.
                    let late = if count_late { now + 1000 } else { 0 };
                    counted.extend(in_flight.drain(..).map(|sent: u64| sent.max(late)));
                    let found = read_at(&*page, now, process);
                    budget = Budget::after(rates, &found, moment(now, process));
                    page = budget.spending().unwrap().page(&Restrictions::default(), &NAME, &BOOT, stamp(now, process));
                }
            }
        }
        counted.extend(in_flight);
        counted.sort_unstable();
        for (window, most) in [(1000, 4), (60_000, 12)] {
            for (at, first) in counted.iter().enumerate() {
                let within = counted[at..].iter().take_while(|time| **time < first + window);
                prop_assert!(within.count() <= most, "{window} {counted:?}");
            }
        }
    }

    /// The price of a restart is small: after a pause of a window, all is free again.
    #[test]
    fn all_is_free_again_after_a_window(steps in steps()) {
        let rates = Rates::of(12, 4);
        let mut now = 1000;
        let mut budget = Budget::after(rates, &EarlierSpending::default(), moment(now, 0));
        let mut in_flight = 0;
        for (pause, step) in steps {
            now += pause;
            match step {
                Step::Flood => {
                    while budget.take(moment(now, 0), Reserve::Nothing).is_ok() {
                        in_flight += 1;
                    }
                }
                Step::Answer if in_flight > 0 => {
                    budget.end(moment(now, 0));
                    in_flight -= 1;
                }
                Step::Answer | Step::Write | Step::Kill(_) => {}
            }
        }
        let page = budget.spending().unwrap().page(&Restrictions::default(), &NAME, &BOOT, stamp(now, 0));
        let found = read_at(&*page, now, 1);
        let mut next = Budget::after(rates, &found, moment(now, 1));
        let later = moment(now + 61_200, 1);
        prop_assert_eq!(next.wait(later, Reserve::Nothing), None);
        prop_assert_eq!(next.remaining(later), Some(12));
    }
}

#[test]
fn a_page_has_what_providers_have_asked_for() {
    let cooldown = HostCooldown {
        host: HostName::new("an-upstream", "a-host"),
        until: moment(41_000, 0),
        quota_spent_until: None,
    };
    let mut asked = Restrictions::default();
    asked.set(cooldown, moment(1000, 0));
    let mut spending = Spending::default();
    spending.take();
    let page = spending.page(&asked, &NAME, &BOOT, stamp(1000, 0));
    let found = read_at(&*page, 11_000, 1).restrictions;
    let until = moment(41_000, 1);
    assert_eq!(found.cooldowns, [HostCooldown { until, ..cooldown }]);
    // A page of the version before has none.
    let old = changed(&*page, |page| {
        page[..8].copy_from_slice(&MAGIC_1);
        page[COUNTED..].fill(0);
    });
    let found = read_at(&old, 11_000, 1);
    assert_eq!(found.interrupted, 1);
    assert_eq!(found.restrictions, Restrictions::default());
    for at in 0..BODY + DIGEST {
        let mut damaged = page.clone();
        damaged[at] ^= 1;
        assert!(
            read(&*damaged, Some(&BOOT), stamp(2000, 1)).is_err(),
            "{at}"
        );
        assert_eq!(read_of_other_boot(&*damaged, moment(2000, 1)), None, "{at}");
    }
}
