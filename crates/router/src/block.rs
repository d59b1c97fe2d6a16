use std::collections::VecDeque;
use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;
use std::vec::IntoIter;

/// Maximum number of entries and links in a block; beyond it, parts become blocks of their own.
const MAX_ENTRIES: usize = 512;

/// Minimum size of a part that becomes a block.
const MIN_ENTRIES: usize = 8;

/// Index that means "no entry".
pub(crate) const NONE: u32 = u32::MAX;

/// Marks a byte that no child begins with. Keys are UTF-8, in which 13 bytes never occur, so no node has 255
/// children.
const NO_CHILD: u8 = u8::MAX;

/// Keys in ascending order, each with its new value, or `None` to remove it.
pub(crate) type Changes<'k, V> = Vec<(&'k [u8], Option<V>)>;

/// A part of a radix tree, in contiguous arrays; a tree of up to [`MAX_ENTRIES`] keys is one block.
///
/// Larger trees have blocks below blocks: if a node is a link, all keys that begin with its text, including that text
/// itself, are in the linked block. A block is immutable: a change builds a new block from its content.
pub(crate) struct Block<V> {
    nodes: Box<[Node]>,
    /// Long labels, and the child tables of nodes with children whose first bytes are far apart.
    bytes: Box<[u8]>,
    entries: Box<[Entry<V>]>,
    blocks: Box<[Arc<Block<V>>]>,
}

/// A node of half a cache line with all data that a lookup needs of nearly every node: the nodes of many routes are
/// read from memory.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct Node {
    /// With [`Children::Near`], one bit per child: the bit of its first byte, counted from `lowest`. With
    /// [`Children::Far`], the start of the child table in the bytes of the block, and in the upper half the length of
    /// the table.
    first_bytes: u64,
    /// Label without its first byte, which selects the node. For a label longer than [`SHORT`], its start in the
    /// bytes of the block.
    label: [u8; SHORT],
    label_length: u32,
    /// Index of the first child; the children are contiguous. For a link, the number of the linked block.
    children_start: u32,
    /// Index of an entry, or [`NONE`].
    pub(crate) entry: u32,
    lowest: u8,
    children: Children,
}

/// Maximum length of a label stored in its node.
const SHORT: usize = 8;

/// Method of finding the child that begins with a byte.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Children {
    /// Counting bits. A node without children has no bit set.
    Near,
    /// Looking up a table with one element per byte from the lowest to the highest: the number of the child, or
    /// [`NO_CHILD`].
    Far,
    /// Continuing in another block.
    Link,
}

impl Node {
    /// Number of bytes from the lowest to the highest first byte of the children.
    fn span(&self) -> u8 {
        match self.children {
            Children::Near => (u64::BITS - self.first_bytes.leading_zeros()) as u8,
            Children::Far => (self.first_bytes >> 32) as u8,
            Children::Link => 0,
        }
    }
}

/// Value of a key.
#[derive(Clone)]
pub(crate) struct Entry<V> {
    pub(crate) value: V,
    /// Entry of the next shorter key in the same block, or [`NONE`].
    pub(crate) shorter: u32,
}

impl<V> Block<V> {
    #[inline]
    pub(crate) fn root(&self) -> &Node {
        &self.nodes[0]
    }

    #[inline]
    pub(crate) fn entry(&self, entry: u32) -> &Entry<V> {
        &self.entries[entry as usize]
    }

    /// Block that a link leads to; `None` for other nodes.
    #[inline]
    pub(crate) fn below(&self, node: &Node) -> Option<&Arc<Block<V>>> {
        (node.children == Children::Link).then(|| &self.blocks[node.children_start as usize])
    }

    #[inline]
    pub(crate) fn label<'b>(&'b self, node: &'b Node) -> &'b [u8] {
        let length = node.label_length as usize;
        node.label.get(..length).unwrap_or_else(|| {
            let [a, b, c, d, ..] = node.label;
            let start = u32::from_le_bytes([a, b, c, d]) as usize;
            &self.bytes[start..start + length]
        })
    }

    /// Child of a node that begins with `byte`.
    #[inline]
    pub(crate) fn child(&self, node: &Node, byte: u8) -> Option<&Node> {
        let place = byte.wrapping_sub(node.lowest);
        let child = match node.children {
            Children::Near => {
                let bit = 1u64.checked_shl(u32::from(place))?;
                if node.first_bytes & bit == 0 {
                    return None;
                }
                (node.first_bytes & (bit - 1)).count_ones()
            }
            Children::Far if place < node.span() => {
                let places_start = node.first_bytes as u32 as usize;
                match self.bytes[places_start + usize::from(place)] {
                    NO_CHILD => return None,
                    child => u32::from(child),
                }
            }
            Children::Far | Children::Link => return None,
        };
        Some(&self.nodes[(node.children_start + child) as usize])
    }
}

/// A key with its item, while a block is built or taken apart.
type Keyed<'k, V> = (&'k [u8], Item<V>);

/// As [`Keyed`], with the key as a range of a text.
type Held<V> = (Range<usize>, Item<V>);

#[derive(Clone)]
enum Item<V> {
    Value(V),
    Block(Arc<Block<V>>),
}

impl<V: Clone> Block<V> {
    /// Builds the block of these keys; `None` if there are none.
    pub(crate) fn of(changes: Changes<'_, V>) -> Option<Arc<Block<V>>> {
        Block::fold(changes.into_iter().filter_map(|(key, value)| Some((key, Item::Value(value?)))).collect())
    }

    /// Builds the changed block; `None` if nothing is left.
    pub(crate) fn change(&self, changes: Changes<'_, V>) -> Option<Arc<Block<V>>> {
        match self.change_below(changes) {
            Ok(block) => Some(Arc::new(block)),
            Err(changes) => self.merge(changes),
        }
    }

    /// Value of a key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<&V> {
        let (node, depth) = self.reach(key)?;
        match self.below(node) {
            Some(block) => block.find(&key[depth..]),
            None => self.entries.get(node.entry as usize).map(|entry| &entry.value),
        }
    }

    /// Builds the block with all changes applied in the blocks below; returns the changes if that is not possible.
    fn change_below<'k>(&self, changes: Changes<'k, V>) -> Result<Block<V>, Changes<'k, V>> {
        let below: Option<Vec<_>> = changes.iter().map(|(key, _)| self.link(key)).collect();
        let Some(below) = below else {
            return Err(changes);
        };
        let mut blocks = self.blocks.to_vec();
        let mut rest = changes.as_slice();
        for links in below.chunk_by(|(a, _), (b, _)| a == b) {
            let (link, depth) = links[0];
            let (here, others) = rest.split_at(links.len());
            rest = others;
            let here = here.iter().map(|(key, value)| (&key[depth..], value.clone())).collect();
            match blocks[link].change(here) {
                Some(block) => blocks[link] = block,
                None => return Err(changes),
            }
        }
        Ok(Block { blocks: blocks.into(), ..self.copy() })
    }

    /// Link that a key leads to, and the length of the key up to there.
    fn link(&self, key: &[u8]) -> Option<(usize, usize)> {
        let (node, depth) = self.reach(key)?;
        (node.children == Children::Link).then_some((node.children_start as usize, depth))
    }

    /// Node of a key or the link on its way, and the length of the key up to there.
    fn reach(&self, key: &[u8]) -> Option<(&Node, usize)> {
        let (mut node, mut depth) = (self.root(), 0);
        while depth < key.len() && node.children != Children::Link {
            node = self.child(node, key[depth])?;
            let label = self.label(node);
            if !key[depth + 1..].starts_with(label) {
                return None;
            }
            depth += 1 + label.len();
        }
        Some((node, depth))
    }

    /// Builds a block from the present content and the changes.
    fn merge(&self, changes: Changes<'_, V>) -> Option<Arc<Block<V>>> {
        let (text, held) = self.unfold();
        let mut merged = Vec::with_capacity(held.len() + changes.len());
        let mut changes = changes.into_iter().peekable();
        let put = |merged: &mut Vec<_>, (key, value): (_, Option<V>)| {
            merged.extend(value.map(|value| (key, Item::Value(value))));
        };
        for (key, item) in held {
            let key = &text[key];
            while let Some(change) = changes.next_if(|(changed, _)| *changed < key) {
                put(&mut merged, change);
            }
            match item {
                Item::Value(value) => match changes.next_if(|(changed, _)| *changed == key) {
                    Some(change) => put(&mut merged, change),
                    None => merged.push((key, Item::Value(value))),
                },
                Item::Block(block) => {
                    let below = take_below(&mut changes, key);
                    let block = if below.is_empty() { Some(block) } else { block.change(below) };
                    merged.extend(block.map(|block| (key, Item::Block(block))));
                }
            }
        }
        changes.for_each(|change| put(&mut merged, change));
        Block::fold(merged)
    }

    /// Content of the block in the order of the keys, which are ranges of the returned text.
    fn unfold(&self) -> (Vec<u8>, Vec<Held<V>>) {
        let (mut text, mut held) = (Vec::new(), Vec::new());
        let mut key = Vec::new();
        // Stack of nodes still to visit: each with the length of the key up to its parent, and the first byte of its
        // label.
        let mut open: Vec<(&Node, usize, Option<u8>)> = vec![(self.root(), 0, None)];
        while let Some((node, depth, first)) = open.pop() {
            key.truncate(depth);
            key.extend(first);
            key.extend_from_slice(self.label(node));
            let value = (node.entry != NONE).then(|| Item::Value(self.entry(node.entry).value.clone()));
            let below = self.below(node).map(|block| Item::Block(Arc::clone(block)));
            if let Some(item) = value.or(below) {
                let start = text.len();
                text.extend_from_slice(&key);
                held.push((start..text.len(), item));
            }
            for place in (0..node.span()).rev() {
                let byte = node.lowest + place;
                open.extend(self.child(node, byte).map(|child| (child, key.len(), Some(byte))));
            }
        }
        (text, held)
    }

    /// Builds the block of these items; their keys are in ascending order, and none is below another one that is a
    /// block.
    fn fold(mut items: Vec<Keyed<'_, V>>) -> Option<Arc<Block<V>>> {
        if items.len() > MAX_ENTRIES {
            items = part(items);
        }
        (!items.is_empty()).then(|| Arc::new(Draft::for_items(&items).lay_out(&items)))
    }

    fn copy(&self) -> Block<V> {
        let Block { nodes, bytes, entries, blocks } = self;
        Block { nodes: nodes.clone(), bytes: bytes.clone(), entries: entries.clone(), blocks: blocks.clone() }
    }
}

/// Takes the changes to keys that begin with `key`.
fn take_below<'k, V>(changes: &mut Peekable<IntoIter<(&'k [u8], Option<V>)>>, key: &[u8]) -> Changes<'k, V> {
    let mut below = Vec::new();
    while let Some((changed, value)) = changes.next_if(|(changed, _)| changed.starts_with(key)) {
        below.push((&changed[key.len()..], value));
    }
    below
}

/// Turns the parts of a tree that are small enough into blocks, and keeps the items that belong to none.
fn part<V: Clone>(items: Vec<Keyed<'_, V>>) -> Vec<Keyed<'_, V>> {
    let most = (items.len() / 64).clamp(MAX_ENTRIES / 4, MAX_ENTRIES).max(items.len() / MAX_ENTRIES);
    let mut parted = Vec::new();
    let mut open = vec![(items, 0)];
    while let Some((items, depth)) = open.pop() {
        let mut items = items.into_iter().peekable();
        parted.extend(items.next_if(|(key, _)| key.len() == depth));
        while let Some(first) = items.next() {
            let key = first.0;
            let mut alike = vec![first];
            while let Some(item) = items.next_if(|(other, _)| other[depth] == key[depth]) {
                alike.push(item);
            }
            let end = depth + common(key, alike[alike.len() - 1].0, depth);
            if alike.len() > most {
                open.push((alike, end));
            } else if alike.len() >= MIN_ENTRIES {
                let below = alike.into_iter().map(|(key, item)| (&key[end..], item)).collect();
                parted.extend(Block::fold(below).map(|block| (&key[..end], Item::Block(block))));
            } else {
                parted.extend(alike);
            }
        }
    }
    parted.sort_by_key(|(key, _)| *key);
    parted
}

/// A block under construction, built level by level.
struct Draft<V> {
    nodes: Vec<Node>,
    bytes: Vec<u8>,
    entries: Vec<Entry<V>>,
    blocks: Vec<Arc<Block<V>>>,
}

/// A node whose children are not built yet.
struct Open<'i, 'k, V> {
    node: usize,
    items: &'i [Keyed<'k, V>],
    depth: usize,
    shorter: u32,
}

impl<V: Clone> Draft<V> {
    /// Reserves exactly the memory that one item needs: a host often has one path.
    fn for_items(items: &[Keyed<'_, V>]) -> Draft<V> {
        let bytes = items.iter().map(|(key, _)| key.len()).max().unwrap_or_default();
        Draft {
            nodes: Vec::with_capacity(items.len() + 1),
            bytes: Vec::with_capacity(bytes),
            entries: Vec::with_capacity(items.len()),
            blocks: Vec::new(),
        }
    }

    fn lay_out(mut self, items: &[Keyed<'_, V>]) -> Block<V> {
        self.push(&[]);
        let mut open = VecDeque::from([Open { node: 0, items, depth: 0, shorter: NONE }]);
        while let Some(Open { node, mut items, depth, mut shorter }) = open.pop_front() {
            if let Some((key, item)) = items.first()
                && key.len() == depth
            {
                self.set(node, item, shorter);
                shorter = self.nodes[node].entry;
                items = &items[1..];
            }
            if let (Some((first, _)), Some((last, _))) = (items.first(), items.last()) {
                self.make_places(node, first[depth], last[depth]);
            }
            for (child, alike) in items.chunk_by(|(a, _), (b, _)| a[depth] == b[depth]).enumerate() {
                let key = alike[0].0;
                let end = depth + common(key, alike[alike.len() - 1].0, depth);
                self.set_place(node, key[depth], child as u8);
                let child = self.push(&key[depth + 1..end]);
                open.push_back(Open { node: child, items: alike, depth: end, shorter });
            }
        }
        let Draft { nodes, bytes, entries, blocks } = self;
        Block { nodes: nodes.into(), bytes: bytes.into(), entries: entries.into(), blocks: blocks.into() }
    }

    fn push(&mut self, label: &[u8]) -> usize {
        let mut short = [0; SHORT];
        match short.get_mut(..label.len()) {
            Some(whole) => whole.copy_from_slice(label),
            None => {
                short[..4].copy_from_slice(&(self.bytes.len() as u32).to_le_bytes());
                self.bytes.extend_from_slice(label);
            }
        }
        self.nodes.push(Node {
            first_bytes: 0,
            label: short,
            label_length: label.len() as u32,
            children_start: 0,
            entry: NONE,
            lowest: 0,
            children: Children::Near,
        });
        self.nodes.len() - 1
    }

    fn set(&mut self, node: usize, item: &Item<V>, shorter: u32) {
        match item {
            Item::Value(value) => {
                self.nodes[node].entry = self.entries.len() as u32;
                self.entries.push(Entry { value: value.clone(), shorter });
            }
            Item::Block(block) => {
                let children_start = self.blocks.len() as u32;
                self.nodes[node] = Node { children_start, children: Children::Link, ..self.nodes[node] };
                self.blocks.push(Arc::clone(block));
            }
        }
    }

    /// Prepares the lookup of a node's children, which come next and have first bytes in this range.
    fn make_places(&mut self, node: usize, lowest: u8, highest: u8) {
        let children_start = self.nodes.len() as u32;
        let span = highest - lowest + 1;
        let (children, first_bytes) = if u32::from(span) <= u64::BITS {
            (Children::Near, 0)
        } else {
            let places_start = self.bytes.len() as u64;
            self.bytes.extend(std::iter::repeat_n(NO_CHILD, usize::from(span)));
            (Children::Far, u64::from(span) << 32 | places_start)
        };
        self.nodes[node] = Node { first_bytes, children_start, lowest, children, ..self.nodes[node] };
    }

    /// Maps a first byte to a child, given by its number among the children of the node.
    fn set_place(&mut self, node: usize, first: u8, child: u8) {
        let node = &mut self.nodes[node];
        let place = first - node.lowest;
        match node.children {
            Children::Far => self.bytes[node.first_bytes as u32 as usize + usize::from(place)] = child,
            Children::Near | Children::Link => node.first_bytes |= 1 << place,
        }
    }
}

/// Length of the common prefix of two keys from `place` on.
fn common(a: &[u8], b: &[u8], place: usize) -> usize {
    a[place..].iter().zip(&b[place..]).take_while(|(a, b)| a == b).count()
}
