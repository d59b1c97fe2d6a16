//! Names and passwords that a directory has taken, for some time.

use aws_lc_rs::{hmac, rand};
use crossbeam_queue::ArrayQueue;
use papaya::HashMap;

/// Most pairs that are kept, within the bound of limiters' keys.
const MOST: usize = 8192;

/// Pairs of a distinguished name and a password, each with the time until which it is known, in milliseconds of the worker's
/// clock. A pair is kept as a hash under a random key, and the oldest one gives way to a new one.
pub(super) struct Found {
    /// `None` where the system has no random bytes: then nothing is kept.
    key: Option<hmac::Key>,
    pairs: HashMap<[u8; 32], u64>,
    /// The hashes in the map, as they came.
    order: ArrayQueue<[u8; 32]>,
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Found").field("pairs", &self.pairs.len()).finish_non_exhaustive()
    }
}

impl Found {
    pub(super) fn new(most: usize) -> Self {
        Self {
            key: hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new()).ok(),
            pairs: HashMap::new(),
            order: ArrayQueue::new(most.clamp(1, MOST)),
        }
    }

    fn tag(&self, dn: &[u8], password: &[u8]) -> Option<[u8; 32]> {
        let mut context = hmac::Context::with_key(self.key.as_ref()?);
        context.update(&(dn.len() as u64).to_le_bytes());
        context.update(dn);
        context.update(password);
        context.sign().as_ref().try_into().ok()
    }

    /// True if the directory has taken the pair, and not too long ago.
    pub(super) fn is_known(&self, dn: &[u8], password: &[u8], now: u64) -> bool {
        let Some(tag) = self.tag(dn, password) else { return false };
        self.pairs.pin().get(&tag).is_some_and(|end| now < *end)
    }

    pub(super) fn remember(&self, dn: &[u8], password: &[u8], end: u64) {
        let Some(tag) = self.tag(dn, password) else { return };
        let pairs = self.pairs.pin();
        // A pair that is known already stands in the order.
        if pairs.insert(tag, end).is_none()
            && let Some(oldest) = self.order.force_push(tag)
        {
            pairs.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Found;

    #[test]
    fn pairs_are_known_for_a_time_and_the_oldest_go() {
        let found = Found::new(2);
        found.remember(b"cn=a", b"bc", 1000);
        assert!(found.is_known(b"cn=a", b"bc", 999) && !found.is_known(b"cn=a", b"bc", 1000));
        assert!(!found.is_known(b"cn=ab", b"c", 0) && !found.is_known(b"cn=a", b"x", 0));
        found.remember(b"cn=a", b"bc", 2000);
        found.remember(b"cn=b", b"b", 2000);
        assert!(found.is_known(b"cn=a", b"bc", 1999));
        found.remember(b"cn=c", b"c", 2000);
        assert!(!found.is_known(b"cn=a", b"bc", 0) && found.is_known(b"cn=b", b"b", 0));
        assert_eq!(found.pairs.len(), 2);
    }
}
