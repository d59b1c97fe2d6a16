use std::collections::VecDeque;
use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;
use std::vec::IntoIter;

/// The most entries and links that a block takes up before parts of it become blocks of their own.
const MOST: usize = 512;

/// No part smaller than this becomes a block.
const LEAST: usize = 8;

/// "No entry".
pub(crate) const NONE: u32 = u32::MAX;

/// No child begins with this byte. Keys are UTF-8, in which 13 bytes never occur: no node has 255 children.
const NO_CHILD: u8 = u8::MAX;

/// Keys in rising order, each with its new value or with nothing if it goes.
pub(crate) type Changes<'k, V> = Vec<(&'k [u8], Option<V>)>;

/// A part of a radix tree, in contiguous arrays; a tree of up to [`MOST`] keys is one block.
///
/// Larger ones have blocks below blocks: where a node is a link, everything that begins with its text, that text itself
/// too, lies in the block that it leads to. A block is never changed: it is made anew from what it holds.
pub(crate) struct Block<V> {
    nodes: Box<[Node]>,
    /// Long labels, and the places of children whose first bytes lie far apart.
    bytes: Box<[u8]>,
    entries: Box<[Entry<V>]>,
    blocks: Box<[Arc<Block<V>>]>,
}

/// Half a cache line, which has all that a lookup needs of nearly every node: the nodes of many routes are read from memory.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct Node {
    /// With [`Children::Near`] a bit for each child: that of its first byte, counted from `lowest`. With [`Children::Far`]
    /// the start of the places in the bytes of the block, and in the upper half their number.
    first_bytes: u64,
    /// The label without its first byte, by which the node is found; of a label longer than [`SHORT`], the start in the
    /// bytes of the block.
    label: [u8; SHORT],
    label_length: u32,
    /// The children lie beside each other. A link has the number of a block instead.
    children_start: u32,
    /// An entry or [`NONE`].
    pub(crate) entry: u32,
    lowest: u8,
    children: Children,
}

/// Length of the longest label that lies in its node.
const SHORT: usize = 8;

/// How the child is found that begins with a byte.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Children {
    /// By counting bits. A node without children has none set.
    Near,
    /// By a place for each byte from the lowest to the highest: the number of the child, or [`NO_CHILD`].
    Far,
    /// In another block.
    Link,
}

impl Node {
    /// Count of first bytes from the lowest to the highest of the children.
    fn span(&self) -> u8 {
        match self.children {
            Children::Near => (u64::BITS - self.first_bytes.leading_zeros()) as u8,
            Children::Far => (self.first_bytes >> 32) as u8,
            Children::Link => 0,
        }
    }
}

/// The value of a key.
#[derive(Clone)]
pub(crate) struct Entry<V> {
    pub(crate) value: V,
    /// The entry of the next shorter key in the same block, or [`NONE`].
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

    /// The block that a link leads to; nothing for another node.
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

    /// The child of a node that begins with `byte`.
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

/// A key with what it leads to, on the way into a block or out of it.
type Keyed<'k, V> = (&'k [u8], Item<V>);

/// The same with the place of the key in a text.
type Held<V> = (Range<usize>, Item<V>);

#[derive(Clone)]
enum Item<V> {
    Value(V),
    Block(Arc<Block<V>>),
}

impl<V: Clone> Block<V> {
    /// The block of these keys, if there are any.
    pub(crate) fn of(changes: Changes<'_, V>) -> Option<Arc<Block<V>>> {
        Block::fold(changes.into_iter().filter_map(|(key, value)| Some((key, Item::Value(value?)))).collect())
    }

    /// What the block becomes, or nothing if nothing is left.
    pub(crate) fn change(&self, changes: Changes<'_, V>) -> Option<Arc<Block<V>>> {
        match self.change_below(changes) {
            Ok(block) => Some(Arc::new(block)),
            Err(changes) => self.merge(changes),
        }
    }

    /// The value of a key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<&V> {
        let (node, depth) = self.reach(key)?;
        match self.below(node) {
            Some(block) => block.find(&key[depth..]),
            None => self.entries.get(node.entry as usize).map(|entry| &entry.value),
        }
    }

    /// The block with all changes in the blocks below, or the changes if that is not possible.
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

    /// The link that a key leads to, and how much of the key leads there.
    fn link(&self, key: &[u8]) -> Option<(usize, usize)> {
        let (node, depth) = self.reach(key)?;
        (node.children == Children::Link).then_some((node.children_start as usize, depth))
    }

    /// The node of a key or the link on its way, and how much of the key leads there.
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

    /// The block made of what it holds and of the changes.
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

    /// Everything that the block holds in the order of the keys, which are in the text.
    fn unfold(&self) -> (Vec<u8>, Vec<Held<V>>) {
        let (mut text, mut held) = (Vec::new(), Vec::new());
        let mut key = Vec::new();
        // What is still to be seen, the next at the end: a node, and how much of the key leads to its parent, with the
        // first byte of its label.
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

    /// The block of these items, whose keys are in rising order, and none of which lies below another that is a block.
    fn fold(mut items: Vec<Keyed<'_, V>>) -> Option<Arc<Block<V>>> {
        if items.len() > MOST {
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

/// Makes blocks of the parts of a tree that are small enough, and keeps the items that are not in one.
fn part<V: Clone>(items: Vec<Keyed<'_, V>>) -> Vec<Keyed<'_, V>> {
    let most = (items.len() / 64).clamp(MOST / 4, MOST).max(items.len() / MOST);
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
            } else if alike.len() >= LEAST {
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

/// A block that is being laid out, level by level.
struct Draft<V> {
    nodes: Vec<Node>,
    bytes: Vec<u8>,
    entries: Vec<Entry<V>>,
    blocks: Vec<Arc<Block<V>>>,
}

/// A node whose children are still to be made.
struct Open<'i, 'k, V> {
    node: usize,
    items: &'i [Keyed<'k, V>],
    depth: usize,
    shorter: u32,
}

impl<V: Clone> Draft<V> {
    /// With as much room as one item needs exactly: a host often has one path.
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

    /// Makes room for the places of the children of a node, which come next and have these first bytes.
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

    /// Lets a first byte lead to a child, by its number among the children of the node.
    fn set_place(&mut self, node: usize, first: u8, child: u8) {
        let node = &mut self.nodes[node];
        let place = first - node.lowest;
        match node.children {
            Children::Far => self.bytes[node.first_bytes as u32 as usize + usize::from(place)] = child,
            Children::Near | Children::Link => node.first_bytes |= 1 << place,
        }
    }
}

/// How many bytes from `place` on two keys share.
fn common(a: &[u8], b: &[u8], place: usize) -> usize {
    a[place..].iter().zip(&b[place..]).take_while(|(a, b)| a == b).count()
}
