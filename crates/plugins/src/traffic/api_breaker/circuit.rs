//! One circuit: how often its upstream failed and worked, in one word that changes as a whole.

use portable_atomic::AtomicU128;
use portable_atomic::Ordering::{AcqRel, Acquire};

use crate::traffic::table::Entry;

/// Most failures and successes that are counted.
pub(crate) const MAX_COUNT: u32 = (1 << COUNT_BITS) - 1;

/// Bits of each count.
const COUNT_BITS: u32 = 24;
/// Bits of each time, in milliseconds: 34 years after the process began.
const TIME_BITS: u32 = 40;

/// The conditions that open and close a circuit, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    /// As many failures open it, and as many more for twice as long; 1 to [`MAX_COUNT`].
    pub(crate) failures: u32,
    /// As many successes one after the other close it; 1 to [`MAX_COUNT`].
    pub(crate) successes: u32,
    /// Milliseconds that it is open at most.
    pub(crate) max_open: u64,
}

/// A circuit. Times are milliseconds of a clock that never goes back and that all threads share; threads may read it a
/// little late.
#[derive(Debug)]
pub(crate) struct Circuit(AtomicU128);

/// The state of a circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct State {
    /// Failures since it was last closed.
    failures: u32,
    /// Successes since the last failure.
    successes: u32,
    /// The time at which it was last opened; 0: it is closed.
    opened: u64,
    /// The time of the last failure or success.
    changed: u64,
}

/// Marks a circuit that is being taken out of its table.
const DEAD: u128 = u128::MAX;

impl State {
    const fn pack(self) -> u128 {
        const MAX_TIME: u64 = (1 << TIME_BITS) - 2;
        let opened = if self.opened < MAX_TIME { self.opened } else { MAX_TIME };
        let changed = if self.changed < MAX_TIME { self.changed } else { MAX_TIME };
        (self.failures as u128) << (COUNT_BITS + 2 * TIME_BITS)
            | (self.successes as u128) << (2 * TIME_BITS)
            | (opened as u128) << TIME_BITS
            | changed as u128
    }

    const fn unpack(word: u128) -> Self {
        const TIME: u64 = (1 << TIME_BITS) - 1;
        Self {
            failures: (word >> (COUNT_BITS + 2 * TIME_BITS)) as u32 & MAX_COUNT,
            successes: (word >> (2 * TIME_BITS)) as u32 & MAX_COUNT,
            opened: (word >> TIME_BITS) as u64 & TIME,
            changed: word as u64 & TIME,
        }
    }
}

impl Rule {
    /// Milliseconds that so many failures open a circuit for: 2 s, and twice as long whenever `failures` more are full.
    fn open_for(&self, failures: u32) -> u64 {
        let times = (failures / self.failures.max(1)).max(1);
        1000u64.checked_shl(times).filter(|_| times < TIME_BITS).map_or(self.max_open, |time| time.min(self.max_open))
    }
}

impl Circuit {
    /// True if requests are kept from the upstream.
    pub(crate) fn is_open(&self, now: u64, rule: &Rule) -> bool {
        let word = self.0.load(Acquire);
        let state = State::unpack(word);
        word != DEAD && state.opened != 0 && now < state.opened + rule.open_for(state.failures)
    }

    /// Counts a failure; `None` when the circuit is dead. Exact: none is lost, whatever threads count at once.
    pub(crate) fn fail(&self, now: u64, rule: &Rule) -> Option<()> {
        self.change(|state| {
            let failures = (state.failures + 1).min(MAX_COUNT);
            let opens = failures % rule.failures.max(1) == 0;
            let opened = if opens { state.opened.max(now).max(1) } else { state.opened };
            State { failures, successes: 0, opened, changed: state.changed.max(now) }
        })
    }

    /// Counts a success; enough of them close the circuit and forget all.
    pub(crate) fn succeed(&self, now: u64, rule: &Rule) {
        // A dead one has nothing to forget.
        let _ = self.change(|state| match state.successes + 1 {
            _ if state.failures == 0 => state,
            successes if successes >= rule.successes => State::default(),
            successes => State { successes, changed: state.changed.max(now), ..state },
        });
    }

    fn change(&self, change: impl Fn(State) -> State) -> Option<()> {
        let mut word = self.0.load(Acquire);
        loop {
            if word == DEAD {
                return None;
            }
            let next = change(State::unpack(word)).pack();
            if next == word {
                return Some(());
            }
            match self.0.compare_exchange_weak(word, next, AcqRel, Acquire) {
                Ok(_) => return Some(()),
                Err(now_there) => word = now_there,
            }
        }
    }
}

impl Entry for Circuit {
    fn unused() -> Self {
        Self(AtomicU128::new(State::default().pack()))
    }

    fn retire(&self, now: u64, linger: u64) -> bool {
        let word = self.0.load(Acquire);
        let state = State::unpack(word);
        word != DEAD
            && (state.failures == 0 || now >= state.changed.saturating_add(linger))
            && self.0.compare_exchange(word, DEAD, AcqRel, Acquire).is_ok()
    }

    fn is_dead(&self) -> bool {
        self.0.load(Acquire) == DEAD
    }
}

#[cfg(test)]
mod tests {
    use super::{Circuit, Entry, MAX_COUNT, Rule, State};

    const RULE: Rule = Rule { failures: 3, successes: 2, max_open: 10_000 };

    #[test]
    fn a_state_is_one_word() {
        for state in [
            State::default(),
            State { failures: 1, successes: 2, opened: 3, changed: 4 },
            State { failures: MAX_COUNT, successes: MAX_COUNT, opened: (1 << 40) - 2, changed: (1 << 40) - 2 },
        ] {
            assert_eq!(State::unpack(state.pack()), state);
            assert_ne!(state.pack(), super::DEAD);
        }
    }

    #[test]
    fn it_is_open_for_two_seconds_and_then_for_longer() {
        let times =
            [(1, 2000), (3, 2000), (5, 2000), (6, 4000), (8, 4000), (9, 8000), (12, 10_000), (MAX_COUNT, 10_000)];
        for (failures, open) in times {
            assert_eq!(RULE.open_for(failures), open, "{failures} failures");
        }
        let circuit = Circuit::unused();
        let open = |now| circuit.is_open(now, &RULE);
        for now in [100, 200] {
            circuit.fail(now, &RULE).unwrap();
            assert!(!open(now));
        }
        circuit.fail(300, &RULE).unwrap();
        assert!(open(300) && open(2299) && !open(2300));
        // As many failures are needed again.
        for now in [2301, 2302] {
            circuit.fail(now, &RULE).unwrap();
            assert!(!open(now));
        }
        circuit.fail(5001, &RULE).unwrap();
        assert!(open(9000) && !open(9001));
    }

    #[test]
    fn successes_one_after_the_other_close_it() {
        let circuit = Circuit::unused();
        for now in 1..=3 {
            circuit.fail(now, &RULE).unwrap();
        }
        circuit.succeed(2500, &RULE);
        circuit.fail(2501, &RULE).unwrap();
        circuit.succeed(4500, &RULE);
        assert_eq!(State::unpack(circuit.0.load(super::Acquire)).failures, 4);
        circuit.succeed(4501, &RULE);
        assert_eq!(State::unpack(circuit.0.load(super::Acquire)), State::default());
        assert!(circuit.retire(4501, 10_000));
        assert_eq!(circuit.fail(5000, &RULE), None);
        assert!(!circuit.is_open(5000, &RULE));
    }

    #[test]
    fn no_failure_is_lost() {
        let circuit = Circuit::unused();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1000).for_each(|_| circuit.fail(7, &RULE).unwrap()));
            }
        });
        let state = State::unpack(circuit.0.load(super::Acquire));
        assert_eq!(state, State { failures: 8000, successes: 0, opened: 7, changed: 7 });
        assert!(!circuit.retire(10_006, 10_000) && circuit.retire(10_007, 10_000));
    }
}
