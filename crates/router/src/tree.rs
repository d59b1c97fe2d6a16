use std::collections::VecDeque;

/// "None" in the links of a tree.
pub(crate) const NONE: u32 = u32::MAX;

/// No child begins with this byte. Keys are UTF-8, in which 13 bytes never occur: no node has 255 children.
const NO_CHILD: u8 = u8::MAX;

/// A forest of radix trees in contiguous arrays: finds the longest of many prefixes of a text, and from there the
/// shorter ones.
///
/// The cost of a lookup depends on the text, not on how many prefixes there are. With `REVERSED`, prefixes and texts are
/// read from their ends: then the longest suffix is found.
#[derive(Default)]
pub(crate) struct Tree<const REVERSED: bool> {
    nodes: Vec<Node>,
    /// For every node, from the lowest to the highest first byte of its children: which child it is. One load finds a
    /// child, however many there are.
    places: Vec<u8>,
    /// The labels without their first byte, by which a node is found.
    labels: Vec<u8>,
    /// By value: the value of the next shorter prefix.
    shorter: Vec<u32>,
}

struct Node {
    label_start: u32,
    label_length: u32,
    /// The children lie beside each other.
    children_start: u32,
    value: u32,
    places_start: u32,
    lowest: u8,
    places_length: u8,
}

impl<const REVERSED: bool> Tree<REVERSED> {
    /// Adds a tree and returns its root. `keys` are ordered (read in the tree's direction) and distinct; a value belongs
    /// to one key of one tree.
    pub(crate) fn insert(&mut self, keys: &[(&[u8], u32)]) -> u32 {
        let root = self.push(&[]);
        let mut open = VecDeque::from([Open { node: root, keys, depth: 0, shorter: NONE }]);
        while let Some(Open { node, mut keys, depth, mut shorter }) = open.pop_front() {
            if let Some((key, value)) = keys.first()
                && key.len() == depth
            {
                self.nodes[node as usize].value = *value;
                self.link(*value, shorter);
                shorter = *value;
                keys = &keys[1..];
            }
            self.nodes[node as usize].children_start = self.nodes.len() as u32;
            let mut place = 0;
            while let Some((first, _)) = keys.first() {
                let byte = at::<REVERSED>(first, depth);
                let (alike, others) =
                    keys.split_at(keys.partition_point(|(key, _)| at::<REVERSED>(key, depth) == byte));
                keys = others;
                let end = depth + common::<REVERSED>(first, alike[alike.len() - 1].0, depth);
                let label: Vec<u8> = (depth + 1..end).map(|place| at::<REVERSED>(first, place)).collect();
                let child = self.push(&label);
                self.place(node, byte, place);
                place += 1;
                open.push_back(Open { node: child, keys: alike, depth: end, shorter });
            }
        }
        root
    }

    /// The value of the longest prefix of `text` in the tree at `root`, or [`NONE`].
    #[inline]
    pub(crate) fn longest(&self, root: u32, text: &[u8]) -> u32 {
        let mut node = &self.nodes[root as usize];
        let mut value = node.value;
        let mut depth = 0;
        while depth < text.len()
            && let Some(child) = self.child(node, at::<REVERSED>(text, depth))
        {
            node = child;
            depth += 1;
            let label = &self.labels[node.label_start as usize..(node.label_start + node.label_length) as usize];
            if !label.is_empty() && !begins::<REVERSED>(text, depth, label) {
                break;
            }
            depth += label.len();
            if node.value != NONE {
                value = node.value;
            }
        }
        value
    }

    /// The value of the longest prefix that is shorter than that of `value`, or [`NONE`].
    #[inline]
    pub(crate) fn shorter(&self, value: u32) -> u32 {
        self.shorter[value as usize]
    }

    #[inline]
    fn child(&self, node: &Node, byte: u8) -> Option<&Node> {
        let place = byte.wrapping_sub(node.lowest);
        if place >= node.places_length {
            return None;
        }
        match self.places[node.places_start as usize + usize::from(place)] {
            NO_CHILD => None,
            child => Some(&self.nodes[node.children_start as usize + usize::from(child)]),
        }
    }

    fn push(&mut self, label: &[u8]) -> u32 {
        let (label_start, label_length) = (self.labels.len() as u32, label.len() as u32);
        self.labels.extend_from_slice(label);
        self.nodes.push(Node {
            label_start,
            label_length,
            children_start: 0,
            value: NONE,
            places_start: 0,
            lowest: 0,
            places_length: 0,
        });
        self.nodes.len() as u32 - 1
    }

    /// Notes the child that begins with `byte`; children come in rising order, and one node's before the next one's.
    fn place(&mut self, node: u32, byte: u8, child: u8) {
        let node = &mut self.nodes[node as usize];
        if child == 0 {
            (node.places_start, node.lowest) = (self.places.len() as u32, byte);
        }
        let gap = byte - node.lowest - node.places_length;
        self.places.extend(std::iter::repeat_n(NO_CHILD, usize::from(gap)));
        self.places.push(child);
        node.places_length = byte - node.lowest + 1;
    }

    fn link(&mut self, value: u32, shorter: u32) {
        let length = self.shorter.len().max(value as usize + 1);
        self.shorter.resize(length, NONE);
        self.shorter[value as usize] = shorter;
    }
}

/// A node whose children are still to be made.
struct Open<'k> {
    node: u32,
    keys: &'k [(&'k [u8], u32)],
    depth: usize,
    shorter: u32,
}

/// How many bytes from `place` on two keys share.
fn common<const REVERSED: bool>(a: &[u8], b: &[u8], place: usize) -> usize {
    let longest = a.len().min(b.len());
    (place..longest).take_while(|&place| at::<REVERSED>(a, place) == at::<REVERSED>(b, place)).count()
}

/// The byte of `text` at `place` in the tree's direction.
#[inline]
fn at<const REVERSED: bool>(text: &[u8], place: usize) -> u8 {
    text[if REVERSED { text.len() - 1 - place } else { place }]
}

/// Whether `label` stands in `text` at `place`; a label is always kept in the tree's direction.
#[inline]
fn begins<const REVERSED: bool>(text: &[u8], place: usize, label: &[u8]) -> bool {
    if REVERSED {
        text.len() - place >= label.len() && text[..text.len() - place].iter().rev().zip(label).all(|(a, b)| a == b)
    } else {
        text[place..].starts_with(label)
    }
}
