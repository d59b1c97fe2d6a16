use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::block::{Block, Changes, NONE};

/// A radix tree: finds the longest of many prefixes of a text, and from there the shorter ones.
///
/// The cost of a lookup depends on the text, not on the number of prefixes. With `REVERSED`, prefixes and texts are
/// read from their ends, so the longest suffix is found. The nodes are in blocks that clones share; a change rebuilds
/// the blocks on the way to it.
#[derive(Clone)]
pub(crate) struct Tree<V, const REVERSED: bool> {
    root: Option<Arc<Block<V>>>,
}

impl<V: Clone, const REVERSED: bool> Tree<V, REVERSED> {
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Value of exactly this prefix.
    pub(crate) fn find(&self, prefix: &[u8]) -> Option<&V> {
        let key = directed::<REVERSED>(prefix);
        self.root.as_ref()?.find(&key)
    }

    /// Sets or removes the values of prefixes. The prefixes are distinct.
    pub(crate) fn change(&mut self, changes: Vec<(&[u8], Option<V>)>) {
        if changes.is_empty() {
            return;
        }
        let directed = |(prefix, value)| (directed::<REVERSED>(prefix), value);
        let mut changes: Vec<(Cow<'_, [u8]>, Option<V>)> = changes.into_iter().map(directed).collect();
        changes.sort_by(|(a, _), (b, _)| a.cmp(b));
        let changes: Changes<'_, V> = changes.iter_mut().map(|(prefix, value)| (&**prefix, value.take())).collect();
        self.root = match &self.root {
            Some(block) => block.change(changes),
            None => Block::of(changes),
        };
    }

    /// Calls `visit` with the values of the prefixes of `text`, the longest first, until it breaks.
    #[inline]
    pub(crate) fn walk(&self, text: &[u8], mut visit: impl FnMut(&V) -> ControlFlow<()>) -> ControlFlow<()> {
        let mut within = text;
        while let Some(Found { block, start, mut entry }) = self.longest(within) {
            loop {
                let found = block.entry(entry);
                visit(&found.value)?;
                entry = found.shorter;
                if entry == NONE {
                    break;
                }
            }
            // Prefixes in the blocks above are shorter than the text that leads to this block; above the first block
            // there are none.
            let Some(above) = start.checked_sub(1) else {
                break;
            };
            within = if REVERSED { &text[text.len() - above..] } else { &text[..above] };
        }
        ControlFlow::Continue(())
    }

    /// Longest prefix of `text`.
    #[inline]
    fn longest(&self, text: &[u8]) -> Option<Found<'_, V>> {
        let mut block = &**self.root.as_ref()?;
        let (mut start, mut depth) = (0, 0);
        let mut best = None;
        loop {
            let mut node = block.root();
            let mut entry = node.entry;
            while depth < text.len()
                && let Some(child) = block.child(node, at::<REVERSED>(text, depth))
            {
                node = child;
                depth += 1;
                let label = block.label(child);
                if !label.is_empty() && !begins::<REVERSED>(text, depth, label) {
                    // The text differs within this label; no root is a link.
                    node = block.root();
                    break;
                }
                depth += label.len();
                if node.entry != NONE {
                    entry = node.entry;
                }
            }
            if entry != NONE {
                best = Some(Found { block, start, entry });
            }
            let Some(below) = block.below(node) else {
                return best;
            };
            (block, start) = (below, depth);
        }
    }
}

impl<V, const REVERSED: bool> Default for Tree<V, REVERSED> {
    fn default() -> Self {
        Tree { root: None }
    }
}

/// A found prefix.
struct Found<'t, V> {
    block: &'t Block<V>,
    /// Length of the text that leads to the block.
    start: usize,
    entry: u32,
}

/// Prefix in the direction of the tree.
fn directed<const REVERSED: bool>(prefix: &[u8]) -> Cow<'_, [u8]> {
    if REVERSED { prefix.iter().rev().copied().collect() } else { prefix.into() }
}

/// Byte of `text` at `place` in the direction of the tree.
#[inline]
fn at<const REVERSED: bool>(text: &[u8], place: usize) -> u8 {
    text[if REVERSED { text.len() - 1 - place } else { place }]
}

/// True if `text` continues with `label` at `place`; a label is always stored in the direction of the tree.
#[inline]
fn begins<const REVERSED: bool>(text: &[u8], place: usize, label: &[u8]) -> bool {
    if REVERSED {
        text.len() - place >= label.len() && text[..text.len() - place].iter().rev().zip(label).all(|(a, b)| a == b)
    } else {
        text[place..].starts_with(label)
    }
}
