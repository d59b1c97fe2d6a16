//! Tokens that were found good, so that the next request with the same one costs no signature.

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use aws_lc_rs::{hmac, rand};
use crossbeam_queue::ArrayQueue;

use crate::auth::credentials::CredentialAt;
use crate::number_hash::NumberHash;

/// Most tokens that are remembered; the oldest one gives way to a new one.
const TOKENS: usize = 8192;

/// Tokens whose signatures were verified, by a hash of the whole token.
///
/// A table belongs to one set of credentials: when a consumer changes, there are new credentials and nothing is remembered.
/// The claims of time of a token are checked anew each time. The hash is an HMAC under a random key: nobody
/// can make a token that is taken for another.
#[derive(Debug)]
pub(crate) struct Verified {
    key: hmac::Key,
    most: usize,
    /// Made for the first good token: plugins are rebuilt with every change, and many are never asked.
    held: OnceLock<Held>,
}

#[derive(Debug)]
struct Held {
    tokens: papaya::HashMap<Tag, Known, NumberHash>,
    /// The tags in the map, as they came.
    order: ArrayQueue<Tag>,
}

/// The facts about a valid token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Known {
    /// Whose it is: the place of the credential.
    pub(crate) at: CredentialAt,
    pub(crate) exp: Option<f64>,
    pub(crate) nbf: Option<f64>,
}

/// The hash of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag([u8; 32]);

impl Verified {
    /// An empty memory; `None` when the system has no random bytes.
    pub(crate) fn new() -> Option<Self> {
        Self::with_room_for(TOKENS)
    }

    fn with_room_for(most: usize) -> Option<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new()).ok()?;
        Some(Self { key, most, held: OnceLock::new() })
    }

    /// The hash of a token, whose consumer is named by the claim `claim`.
    pub(crate) fn tag(&self, claim: &str, token: &[u8]) -> Tag {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&(claim.len() as u64).to_le_bytes());
        context.update(claim.as_bytes());
        context.update(token);
        let mut tag = [0; 32];
        for (to, from) in tag.iter_mut().zip(context.sign().as_ref()) {
            *to = *from;
        }
        Tag(tag)
    }

    pub(crate) fn find(&self, tag: &Tag) -> Option<Known> {
        self.held.get()?.tokens.pin().get(tag).copied()
    }

    pub(crate) fn remember(&self, tag: Tag, known: Known) {
        let held = self.held.get_or_init(|| Held {
            tokens: papaya::HashMap::with_hasher(NumberHash::default()),
            order: ArrayQueue::new(self.most),
        });
        let tokens = held.tokens.pin();
        // Another worker may have been quicker; it has put the tag in order as well.
        if tokens.try_insert(tag, known).is_ok()
            && let Some(oldest) = held.order.force_push(tag)
        {
            tokens.remove(&oldest);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.held.get().map_or(0, |held| held.tokens.len())
    }
}

/// A tag is a hash already: its first word will do.
impl Hash for Tag {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    }
}

#[cfg(test)]
mod tests {
    use super::{Known, Verified};
    use crate::auth::credentials::CredentialAt;

    fn known(at: usize) -> Known {
        Known { at: CredentialAt::numbered(at), exp: Some(at as f64), nbf: None }
    }

    #[test]
    fn tokens_are_known_under_the_claim_they_were_read_by() {
        let verified = Verified::with_room_for(4).unwrap();
        let tag = verified.tag("key", b"a.b.c");
        assert_eq!(verified.find(&tag), None);
        verified.remember(tag, known(7));
        assert_eq!(verified.find(&verified.tag("key", b"a.b.c")), Some(known(7)));
        for (claim, token) in [("iss", "a.b.c"), ("key", "a.b.d"), ("key", "a.b."), ("keya", ".b.c"), ("ke", "ya.b.c")]
        {
            assert_eq!(verified.find(&verified.tag(claim, token.as_bytes())), None, "{claim} {token}");
        }
        let other = Verified::with_room_for(4).unwrap();
        assert_ne!(tag, other.tag("key", b"a.b.c"), "each has a key of its own");
    }

    #[test]
    fn the_oldest_go_when_there_is_no_room() {
        let verified = Verified::with_room_for(4).unwrap();
        for n in 0..100_usize {
            let tag = verified.tag("key", &n.to_le_bytes());
            verified.remember(tag, known(n));
            // Again, as another worker would at the same time: it stays once.
            verified.remember(tag, known(n));
        }
        assert_eq!(verified.len(), 4);
        for n in 90..100_usize {
            let found = verified.find(&verified.tag("key", &n.to_le_bytes()));
            assert_eq!(found, (n >= 96).then(|| known(n)), "{n}");
        }
    }

    #[test]
    fn workers_that_meet_forget_as_much_as_they_remember() {
        let verified = Verified::with_room_for(16).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for n in 0..5000_usize {
                        let tag = verified.tag("key", &(n / 3).to_le_bytes());
                        verified.remember(tag, known(n / 3));
                        assert!(verified.find(&tag).is_none_or(|found| found == known(n / 3)));
                    }
                });
            }
        });
        assert_eq!(verified.len(), 16);
    }
}
