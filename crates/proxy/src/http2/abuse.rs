//! Counts of what costs the receiver more than the sender.

/// Milliseconds after which counting begins anew.
const PERIOD_MS: u64 = 10_000;

/// Kind of traffic that a peer may send only so much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Abuse {
    /// Streams that were reset before their response was complete, by the peer or because of its errors.
    Resets,
    /// Frames that move nothing: SETTINGS, PING, PRIORITY, frames of closed streams and of unknown types.
    ControlFrames,
    /// DATA frames with little or no content.
    EmptyFrames,
    /// A header block in too many frames, or of too many bytes.
    HeaderBlock,
}

impl Abuse {
    /// Reason for the log and for the debug data of GOAWAY.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Resets => "too many streams reset",
            Self::ControlFrames => "too many control frames",
            Self::EmptyFrames => "too many DATA frames without content",
            Self::HeaderBlock => "header block too large, or in too many frames",
        }
    }
}

/// Count of one kind of traffic within a period.
#[derive(Debug, Default)]
pub(super) struct Meter {
    began: u64,
    count: u32,
    /// Useful traffic of the period, which pays for some of the other.
    earned: u32,
}

impl Meter {
    /// Counts one; false if that is more than `most`, and more than was earned beside it.
    pub(super) fn count(&mut self, now_ms: u64, most: u32) -> bool {
        self.renew(now_ms);
        self.count = self.count.saturating_add(1);
        self.count <= most.saturating_add(self.earned)
    }

    /// Counts useful traffic.
    pub(super) fn earn(&mut self, now_ms: u64, amount: u32) {
        self.renew(now_ms);
        self.earned = self.earned.saturating_add(amount);
    }

    fn renew(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.began) >= PERIOD_MS {
            *self = Self { began: now_ms, count: 0, earned: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Meter, PERIOD_MS};

    #[test]
    fn a_period_has_its_count_and_what_was_earned() {
        let mut meter = Meter::default();
        assert!((0..3).all(|_| meter.count(5, 3)));
        assert!(!meter.count(5, 3));
        meter.earn(6, 2);
        assert!(meter.count(7, 3));
        assert!(!meter.count(8, 3));
        assert!(meter.count(5 + PERIOD_MS, 3), "a new period");
    }
}
