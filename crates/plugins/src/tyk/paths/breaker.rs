//! Circuit breakers: requests are kept from an upstream while too large a share of them fails.
//!
//! ```text
//! closed ──(a share of threshold_percent fails, of samples or more)──► open ──(return_to_service_after)──► closed
//!                                                                        └──(one request at a time succeeds)──┘
//! ```

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::time::Duration;

use portable_atomic::AtomicU128;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::Invalid;

/// A breaker of the paths that it is about, for all callers and workers together.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    path: String,
    method: String,
    /// The share of failures that opens it, above 0 and up to 1.
    threshold_percent: f64,
    /// Requests that have to be counted before it opens.
    samples: i64,
    /// Seconds after which it closes.
    return_to_service_after: i64,
    /// Lets no request through while it is open.
    disable_half_open_state: bool,
}

impl Conf {
    pub(super) fn which(&self) -> (String, String) {
        (self.path.clone(), self.method.clone())
    }
}

/// Milliseconds within which requests are counted together.
const WINDOW_MS: u64 = 10_000;
/// Milliseconds between two requests that try an upstream while the breaker is open.
const TRIAL_MS: u64 = 500;
/// Most requests that are counted in a window.
const MOST: u32 = (1 << 24) - 1;
/// Largest time of the clock: 34 years after the process began.
const MOST_TIME: u64 = (1 << 40) - 1;

/// The rule of a breaker.
#[derive(Clone, Copy, PartialEq)]
struct Rule {
    threshold: f64,
    samples: u32,
    open_ms: u64,
    has_trials: bool,
}

/// A change of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tyk) enum Change {
    Opened,
    Closed,
}

/// A breaker, compiled.
pub(super) struct Breaker {
    /// The path that it is about, as it is written.
    path: Box<str>,
    rule: Rule,
    state: AtomicU128,
    /// The time at which the next request tries the upstream of an open breaker.
    next_trial: AtomicU64,
}

/// Counts and times of a breaker, in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// Beginning of the window, in milliseconds.
    since: u64,
    requests: u32,
    failures: u32,
    /// The time until which it is open; 0: it is closed.
    until: u64,
}

impl State {
    fn pack(self) -> u128 {
        u128::from(self.since.min(MOST_TIME)) << 88
            | u128::from(self.requests.min(MOST)) << 64
            | u128::from(self.failures.min(MOST)) << 40
            | u128::from(self.until.min(MOST_TIME))
    }

    fn unpack(word: u128) -> Self {
        Self {
            since: (word >> 88) as u64 & MOST_TIME,
            requests: (word >> 64) as u32 & MOST,
            failures: (word >> 40) as u32 & MOST,
            until: word as u64 & MOST_TIME,
        }
    }
}

impl std::fmt::Debug for Breaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Rule { threshold, samples, open_ms, has_trials } = self.rule;
        write!(f, "Breaker({threshold}, {samples}, {open_ms}, {has_trials})")
    }
}

impl Breaker {
    pub(super) fn compile(conf: &Conf, field: &str) -> Result<Self, Invalid> {
        let fault = |name: &str, text: &str| Invalid::new(format!("{field}.{name}"), text);
        let threshold = conf.threshold_percent;
        if !(threshold > 0.0 && threshold <= 1.0) {
            return Err(fault("threshold_percent", "expected a share above 0 and up to 1, such as 0.5"));
        }
        let seconds = u64::try_from(conf.return_to_service_after).ok().filter(|seconds| (1..=86_400).contains(seconds));
        let seconds = seconds.ok_or_else(|| fault("return_to_service_after", "expected 1 to 86400 seconds"))?;
        let samples = u32::try_from(conf.samples.max(1)).unwrap_or(MOST).min(MOST);
        let rule = Rule { threshold, samples, open_ms: seconds * 1000, has_trials: !conf.disable_half_open_state };
        Ok(Self::new(&conf.path, rule))
    }

    fn new(path: &str, rule: Rule) -> Self {
        Self { path: path.into(), rule, state: AtomicU128::new(0), next_trial: AtomicU64::new(0) }
    }

    /// The same breaker, closed.
    pub(super) fn anew(&self) -> Self {
        Self::new(&self.path, self.rule)
    }

    /// The path that it is about, as it is written.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The time for which it is open.
    pub(super) fn open_time(&self) -> Duration {
        Duration::from_millis(self.rule.open_ms)
    }

    /// True if a request may go to the upstream now, at a time in milliseconds.
    pub(super) fn lets_through(&self, now: u64) -> bool {
        let state = State::unpack(self.state.load(Acquire));
        if state.until == 0 || now >= state.until {
            return true;
        }
        let next = self.next_trial.load(Relaxed);
        self.rule.has_trials
            && now >= next
            && self.next_trial.compare_exchange(next, now + TRIAL_MS, AcqRel, Relaxed).is_ok()
    }

    /// Closes it once its time is over; true if nobody else did.
    pub(super) fn close(&self, now: u64) -> bool {
        let word = self.state.load(Acquire);
        let until = State::unpack(word).until;
        let closed = State { since: now, ..State::default() };
        until != 0 && until <= now && self.state.compare_exchange(word, closed.pack(), AcqRel, Relaxed).is_ok()
    }

    /// Counts the outcome of a request that was let through; its change, if it has opened or closed.
    pub(super) fn note(&self, now: u64, failed: bool) -> Option<Change> {
        let mut word = self.state.load(Acquire);
        loop {
            let next = self.after(State::unpack(word), now, failed);
            match self.state.compare_exchange_weak(word, next.pack(), AcqRel, Acquire) {
                Ok(_) => {
                    let before = State::unpack(word).until;
                    if next.until > now && before <= now {
                        self.next_trial.store(now + TRIAL_MS, Relaxed);
                        return Some(Change::Opened);
                    }
                    return (before != 0 && next.until == 0).then_some(Change::Closed);
                }
                Err(changed) => word = changed,
            }
        }
    }

    fn after(&self, state: State, now: u64, failed: bool) -> State {
        if state.until > now {
            // A request that tries the upstream: a success closes the breaker.
            return if failed { state } else { State { since: now, ..State::default() } };
        }
        let is_over = state.until != 0 || now >= state.since + WINDOW_MS;
        let counted = if is_over { State { since: now, ..State::default() } } else { state };
        let requests = (counted.requests + 1).min(MOST);
        let failures = (counted.failures + u32::from(failed)).min(MOST);
        let is_too_much =
            failed && requests >= self.rule.samples && f64::from(failures) >= self.rule.threshold * f64::from(requests);
        match is_too_much {
            true => State { since: now, requests: 0, failures: 0, until: now + self.rule.open_ms },
            false => State { requests, failures, until: 0, ..counted },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Breaker, Change, MOST, MOST_TIME, Rule, State};

    fn breaker(has_trials: bool) -> Breaker {
        Breaker::new("/a", Rule { threshold: 0.5, samples: 4, open_ms: 2000, has_trials })
    }

    #[test]
    fn a_state_is_one_word() {
        for state in [
            State::default(),
            State { since: 1, requests: 2, failures: 3, until: 4 },
            State { since: MOST_TIME, requests: MOST, failures: MOST, until: MOST_TIME },
        ] {
            assert_eq!(State::unpack(state.pack()), state);
        }
    }

    #[test]
    fn a_share_of_failures_opens_it_for_a_time() {
        let breaker = breaker(false);
        for (failed, at) in [(true, 1), (true, 2), (false, 3)] {
            breaker.note(at, failed);
            assert!(breaker.lets_through(at), "too few samples at {at}");
        }
        breaker.note(4, false);
        assert!(breaker.lets_through(4), "a success does not open it");
        breaker.note(5, true);
        assert_eq!([5, 1000, 2004, 2005].map(|now| breaker.lets_through(now)), [false, false, false, true]);
        breaker.note(2006, true);
        assert!(breaker.lets_through(2006), "it counts anew");
    }

    #[test]
    fn it_is_closed_once() {
        let breaker = breaker(false);
        (0..4).for_each(|at| _ = breaker.note(at, true));
        assert_eq!([2002, 2003, 2003].map(|now| breaker.close(now)), [false, true, false]);
        (0..4).for_each(|at| _ = breaker.note(2004 + at, true));
        assert_eq!(breaker.note(4007, false), Some(Change::Closed));
        assert!(!breaker.close(4007));
    }

    #[test]
    fn windows_are_counted_apart() {
        let breaker = breaker(false);
        for at in [0, 1, 2, 10_000, 10_001, 10_002] {
            breaker.note(at, true);
            assert!(breaker.lets_through(at), "{at}");
        }
        breaker.note(10_003, true);
        assert!(!breaker.lets_through(10_003));
    }

    #[test]
    fn a_trial_that_succeeds_closes_it() {
        let breaker = breaker(true);
        assert_eq!([0, 1, 2, 3].map(|at| breaker.note(at, true)), [None, None, None, Some(Change::Opened)]);
        assert_eq!([3, 502, 503, 504].map(|now| breaker.lets_through(now)), [false, false, true, false]);
        assert_eq!(breaker.note(505, true), None);
        assert!(!breaker.lets_through(600));
        assert!(breaker.lets_through(1003));
        assert_eq!(breaker.note(1004, false), Some(Change::Closed));
        assert_eq!([1005, 1006].map(|now| breaker.lets_through(now)), [true, true]);
    }
}
