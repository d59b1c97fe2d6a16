//! Shares of a window that one worker holds: the decisions, apart from Redis and from clocks.
//!
//! A worker takes shares of a window from Redis, where they count as used, and lets requests pass on them. The sum of all
//! grants never exceeds the limit, so neither do the requests. Shares that lie unused when the window ends are what too
//! few pass.

use super::counter::{Quota, Taken, WindowKind};

/// Milliseconds for which a lease is meant to last: it is taken for as many requests as came in so much time.
const LASTS: u64 = 100;
/// Most by which a lease grows over the last one.
const GROWTH: u64 = 4;
/// Milliseconds without a request after which unused shares are given back.
pub(super) const IDLE: u64 = 1000;
/// Longest time in milliseconds for which a refusal holds without asking again; a hundredth of a shorter window.
const LONGEST_REFUSAL: u64 = 100;
/// A clock is expected to lose less than one millisecond in so many.
const DRIFT: u64 = 1000;

/// Question for shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    /// Units of requests that wait: they get shares as long as there are any.
    pub(super) need: u64,
    /// Shares that would be of use beyond them; grants are smaller near the limit.
    pub(super) want: u64,
    /// The window of which the holder had shares last; 0: of none.
    pub(super) window: u64,
}

/// Answer to an [`Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) shares: u64,
    /// Requests that count against the limit, those of all grants included.
    pub(super) used: u64,
    /// Milliseconds that the window has left.
    pub(super) left: u64,
    /// End of the window by the clock of Redis, which names it.
    pub(super) window: u64,
}

/// Shares that go back to their window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Return {
    pub(super) shares: u64,
    pub(super) window: u64,
}

/// Lease of a key. Times are milliseconds of a clock of the worker that never goes back.
#[derive(Debug, Default)]
pub(super) struct Lease {
    /// The window that the shares are of.
    window: u64,
    /// Time from which they may not be used.
    end: u64,
    shares: u64,
    /// Shares of the last grant, when it came, and requests since.
    granted: u64,
    since: u64,
    spent: u64,
    /// Requests that the window has left beyond all grants, as Redis said last.
    rest: u64,
    refused_until: u64,
    used_at: u64,
    /// True while a question is under way.
    pub(super) is_asking: bool,
}

impl Lease {
    /// Decides about a request of so many units; `None`: Redis has to be asked.
    pub(super) fn take(&mut self, now: u64, units: u64) -> Option<Taken> {
        let reset = self.end.saturating_sub(now);
        self.used_at = now;
        if reset > 0 && self.shares >= units {
            self.shares -= units;
            self.spent += units;
            return Some(Taken { passed: true, remaining: self.shares + self.rest, reset });
        }
        let remaining = if reset > 0 { self.shares + self.rest } else { 0 };
        (now < self.refused_until).then_some(Taken { passed: false, remaining, reset })
    }

    /// True if [`take`](Self::take) would decide.
    pub(super) fn is_ready(&self, now: u64, units: u64) -> bool {
        now < self.end && self.shares >= units || now < self.refused_until
    }

    /// True if more shares are to be taken ahead, so that no request waits.
    pub(super) fn is_low(&self, now: u64) -> bool {
        !self.is_asking && self.granted > 1 && self.shares <= self.granted / 2 && self.rest > 0 && now < self.end
    }

    /// The question for more shares, with so many requests waiting.
    pub(super) fn ask(&mut self, now: u64, need: u64) -> Ask {
        self.is_asking = true;
        let elapsed = now.saturating_sub(self.since).max(1);
        let most = self.granted.max(1).saturating_mul(GROWTH);
        let want = (self.spent.saturating_mul(LASTS) / elapsed).clamp(1, most);
        Ask { need, want, window: self.window }
    }

    /// Takes an answer in; `sent` is when the question was asked. Gives what goes back of another window.
    pub(super) fn receive(
        &mut self,
        (sent, now): (u64, u64),
        ask: &Ask,
        grant: &Grant,
        quota: &Quota,
    ) -> Option<Return> {
        self.is_asking = false;
        let back = if self.window == grant.window { None } else { self.close(quota) };
        // The script ran after `sent`, so this end is not later than that of the window.
        let end = sent + grant.left.saturating_sub(grant.left / DRIFT + 1);
        self.end = if self.window == grant.window { self.end.max(end) } else { end };
        self.window = grant.window;
        self.shares += grant.shares;
        (self.granted, self.since, self.spent) = (grant.shares, now, 0);
        self.rest = quota.count.saturating_sub(grant.used);
        if grant.shares < ask.need {
            let pause = (quota.window / 100).clamp(1, LONGEST_REFUSAL);
            self.refused_until = (now + pause).min(self.end.max(now));
        }
        back
    }

    /// An answer will not come.
    pub(super) fn fail(&mut self) {
        self.is_asking = false;
    }

    /// Shares that go back because nobody has used them for a while.
    pub(super) fn rest_idle(&mut self, now: u64) -> Option<Return> {
        let is_idle = now.saturating_sub(self.used_at) >= IDLE;
        if is_idle && !self.is_asking { self.give_up() } else { None }
    }

    /// True if the window is over and nothing is under way.
    pub(super) fn is_over(&self, now: u64) -> bool {
        now >= self.end && now >= self.refused_until && !self.is_asking
    }

    /// Ends the lease with its window. Only a sliding window still counts when it is over.
    pub(super) fn close(&mut self, quota: &Quota) -> Option<Return> {
        let back = self.give_up();
        back.filter(|_| quota.kind == WindowKind::Sliding)
    }

    /// All shares, which go back.
    pub(super) fn give_up(&mut self) -> Option<Return> {
        let shares = std::mem::take(&mut self.shares);
        self.granted = self.granted.min(1);
        (shares > 0).then_some(Return { shares, window: self.window })
    }

    /// Shares that are held.
    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        self.shares
    }
}

#[cfg(test)]
mod tests {
    use super::{Ask, Grant, Lease, Return};
    use crate::traffic::limit_count::counter::{Quota, Taken, WindowKind};

    const QUOTA: Quota = Quota { count: 1000, window: 60_000, kind: WindowKind::Fixed };

    fn grant(shares: u64, used: u64) -> Grant {
        Grant { shares, used, left: 50_000, window: 7 }
    }

    /// A lease that was granted so many shares at 100, to a question of the same time.
    fn leased(shares: u64, used: u64) -> Lease {
        let mut lease = Lease::default();
        assert_eq!(lease.take(100, 1), None);
        let ask = lease.ask(100, 1);
        assert_eq!(ask, Ask { need: 1, want: 1, window: 0 });
        assert_eq!(lease.receive((100, 100), &ask, &grant(shares, used), &QUOTA), None);
        lease
    }

    #[test]
    fn shares_are_spent_until_the_window_ends() {
        let mut lease = leased(2, 10);
        // A thousandth and a millisecond are left for clocks that are slow.
        let end = 100 + 50_000 - 51;
        assert_eq!(lease.take(110, 1), Some(Taken { passed: true, remaining: 1 + 990, reset: end - 110 }));
        assert!(!lease.is_over(end - 1));
        assert!(lease.is_over(end));
        assert_eq!(lease.take(end, 1), None);
        assert_eq!(lease.close(&QUOTA), None, "a fixed window that is over counts no longer");
        assert_eq!(lease.take(end - 1, 1), None);
    }

    #[test]
    fn a_lease_grows_with_the_rate_and_is_renewed_ahead() {
        let mut lease = leased(4, 10);
        for now in [101, 101, 102] {
            assert_eq!(lease.is_low(now), lease.held() <= 2);
            assert!(lease.take(now, 1).is_some_and(|taken| taken.passed));
        }
        // Three requests in 2 ms are 150 in 100 ms, of which four times the last lease are asked for.
        let ask = lease.ask(102, 0);
        assert_eq!(ask, Ask { need: 0, want: 16, window: 7 });
        assert!(!lease.is_low(102), "one question at a time");
        lease.receive((102, 107), &ask, &grant(16, 26), &QUOTA);
        assert_eq!(lease.held(), 17);
        assert_eq!(lease.ask(1107, 0).want, 1, "nothing was spent since");
    }

    #[test]
    fn a_refusal_holds_for_a_moment() {
        let mut lease = leased(0, 1000);
        assert_eq!(lease.take(199, 1).map(|taken| taken.passed), Some(false));
        assert_eq!(lease.take(200, 1), None);
    }

    #[test]
    fn unused_shares_go_back() {
        let mut lease = leased(5, 10);
        assert!(lease.take(110, 1).is_some());
        assert_eq!(lease.rest_idle(1109), None);
        assert_eq!(lease.rest_idle(1110), Some(Return { shares: 4, window: 7 }));
        assert_eq!(lease.rest_idle(1110), None, "once");

        // Those of a sliding window that is over, too: they would count against the next one.
        let sliding = Quota { kind: WindowKind::Sliding, ..QUOTA };
        let mut lease = leased(5, 10);
        let ask = lease.ask(60_000, 1);
        let next = Grant { shares: 1, used: 20, left: 50_000, window: 60_007 };
        let back = lease.receive((60_000, 60_001), &ask, &next, &sliding);
        assert_eq!((back, lease.held()), (Some(Return { shares: 5, window: 7 }), 1));
    }

    #[test]
    fn an_answer_that_comes_late_lasts_no_longer() {
        let mut lease = Lease::default();
        let ask = lease.ask(100, 1);
        lease.receive((100, 60_000), &ask, &grant(3, 3), &QUOTA);
        assert_eq!((lease.take(60_000, 1), lease.held()), (None, 3));
    }
}
