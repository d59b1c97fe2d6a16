//! Chains of certificates that were verified, so that a connection with many requests costs one signature.

use aws_lc_rs::digest;
use crossbeam_queue::ArrayQueue;
use papaya::HashMap;

/// Most chains that are kept.
const MOST: usize = 8192;

type Tag = [u8; 32];

/// Outcomes, of which a good one is a `T`, by the hashes of chains, each with the time until which it counts, in milliseconds of the worker's clock. The oldest
/// one gives way to a new one.
pub(crate) struct VerifiedChains<T> {
    chains: HashMap<Tag, (Option<T>, u64)>,
    /// The hashes in the map, as they came.
    order: ArrayQueue<Tag>,
}

impl<T> std::fmt::Debug for VerifiedChains<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerifiedChains").field("chains", &self.chains.len()).finish_non_exhaustive()
    }
}

fn tag(chain: &[Box<[u8]>]) -> Option<Tag> {
    let mut context = digest::Context::new(&digest::SHA256);
    for cert in chain {
        context.update(&(cert.len() as u64).to_le_bytes());
        context.update(cert);
    }
    context.finish().as_ref().try_into().ok()
}

impl<T: Clone> VerifiedChains<T> {
    pub(crate) fn new(most: usize) -> Self {
        Self { chains: HashMap::new(), order: ArrayQueue::new(most.clamp(1, MOST)) }
    }

    /// The outcome of a chain, which may be that it is not good; `None`: it has to be verified.
    pub(crate) fn find(&self, chain: &[Box<[u8]>], now: u64) -> Option<Option<T>> {
        let chains = self.chains.pin();
        chains.get(&tag(chain)?).filter(|(_, end)| now < *end).map(|(good, _)| good.clone())
    }

    pub(crate) fn remember(&self, chain: &[Box<[u8]>], good: Option<T>, end: u64) {
        let Some(tag) = tag(chain) else { return };
        let chains = self.chains.pin();
        // A chain that is known already stands in the order.
        if chains.insert(tag, (good, end)).is_none()
            && let Some(oldest) = self.order.force_push(tag)
        {
            chains.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::VerifiedChains;

    #[test]
    fn outcomes_count_for_a_time_and_the_oldest_go() {
        let verified = VerifiedChains::<()>::new(2);
        let chain = |text: &str| vec![text.as_bytes().into()];
        verified.remember(&chain("a"), None, 1000);
        assert!(verified.find(&chain("a"), 999).is_some() && verified.find(&chain("a"), 1000).is_none());
        verified.remember(&chain("b"), None, 1000);
        verified.remember(&chain("c"), None, 1000);
        assert!(verified.find(&chain("a"), 0).is_none() && verified.find(&chain("b"), 0).is_some());
        assert_eq!(verified.chains.len(), 2);
    }
}
