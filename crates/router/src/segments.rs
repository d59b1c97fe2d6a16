use crate::pattern::{Rest, Segment, capture};
use crate::table::Table;
use crate::tree::NONE;

/// Finds, among many patterns with wildcards that share the text before the first one, those that take a path.
///
/// The patterns of a group are ranked; [`Segments::next`] answers one after the other in that order. Every group is a tree
/// with one step a segment, so the cost depends on the path: at each node there are at most the child for that very text
/// and the child for a parameter. Only what follows an inner star is compared pattern by pattern.
#[derive(Default)]
pub(crate) struct Segments {
    nodes: Vec<Node>,
    /// Scope: the node. Value: the child.
    literals: Table,
}

struct Node {
    /// The lowest and highest rank in this subtree: whether it is worth a visit.
    lowest: u32,
    highest: u32,
    has_literals: bool,
    parameter: u32,
    /// Ranks of the patterns that end here.
    ends: Vec<u32>,
    /// Ranks of the patterns whose last segment is a star here: they take whatever is left.
    tails: Vec<u32>,
    /// Ranks of the patterns that have a star here and more behind it.
    stars: Vec<u32>,
}

impl Segments {
    /// Starts a group and returns its root.
    pub(crate) fn start(&mut self) -> u32 {
        self.nodes.push(Node {
            lowest: NONE,
            highest: 0,
            has_literals: false,
            parameter: NONE,
            ends: Vec::new(),
            tails: Vec::new(),
            stars: Vec::new(),
        });
        self.nodes.len() as u32 - 1
    }

    /// Adds a pattern to a group; ranks come in rising order.
    pub(crate) fn insert(&mut self, root: u32, rest: &Rest, rank: u32) {
        let segments = match rest {
            Rest::Segments(segments) => segments,
            Rest::Nothing | Rest::Anything => return self.visit(root, rank).tails.push(rank),
        };
        let mut node = root;
        for (index, segment) in segments.iter().enumerate() {
            match segment {
                Segment::Literal(text) => node = self.literal(node, text, rank),
                Segment::Parameter(_) => node = self.parameter(node, rank),
                Segment::Star(_) if index + 1 == segments.len() => return self.visit(node, rank).tails.push(rank),
                Segment::Star(_) => return self.visit(node, rank).stars.push(rank),
            }
        }
        self.visit(node, rank).ends.push(rank);
    }

    /// The lowest rank from `from` on whose pattern takes `text`, or [`NONE`]. `rest` answers the pattern of a rank.
    pub(crate) fn next<'p>(&self, root: u32, text: &[u8], from: u32, rest: &impl Fn(u32) -> &'p Rest) -> u32 {
        let mut best = NONE;
        self.search(root, text, Some(0), from, rest, &mut best);
        best
    }

    /// `at` is where a segment begins, or nothing when the text is used up. Recurses once a segment of a pattern, whose
    /// number is limited when the patterns are compiled.
    fn search<'p>(
        &self,
        node: u32,
        text: &[u8],
        at: Option<usize>,
        from: u32,
        rest: &impl Fn(u32) -> &'p Rest,
        best: &mut u32,
    ) {
        let node_id = node;
        let node = &self.nodes[node as usize];
        if node.highest < from || node.lowest >= *best {
            return;
        }
        let Some(at) = at else {
            *best = (*best).min(first_from(&node.ends, from));
            return;
        };
        *best = (*best).min(first_from(&node.tails, from));
        let taking = node.stars.iter().copied().skip_while(|rank| *rank < from).take_while(|rank| rank < best);
        if let Some(rank) = taking.into_iter().find(|rank| takes(rest(*rank), text)) {
            *best = rank;
        }
        let end = text[at..].iter().position(|byte| *byte == b'/').map_or(text.len(), |slash| at + slash);
        let next = (end < text.len()).then_some(end + 1);
        if node.has_literals
            && let Some(child) = self.literals.find(node_id, &text[at..end])
        {
            self.search(child, text, next, from, rest, best);
        }
        if node.parameter != NONE && end > at {
            self.search(node.parameter, text, next, from, rest, best);
        }
    }

    fn visit(&mut self, node: u32, rank: u32) -> &mut Node {
        let node = &mut self.nodes[node as usize];
        node.lowest = node.lowest.min(rank);
        node.highest = node.highest.max(rank);
        node
    }

    fn literal(&mut self, parent: u32, text: &str, rank: u32) -> u32 {
        self.visit(parent, rank).has_literals = true;
        match self.literals.find(parent, text.as_bytes()) {
            Some(child) => child,
            None => {
                let child = self.start();
                self.literals.find_or_insert(parent, text.as_bytes(), child)
            }
        }
    }

    fn parameter(&mut self, parent: u32, rank: u32) -> u32 {
        if self.visit(parent, rank).parameter == NONE {
            let child = self.start();
            self.nodes[parent as usize].parameter = child;
        }
        self.nodes[parent as usize].parameter
    }
}

fn takes(rest: &Rest, text: &[u8]) -> bool {
    match rest {
        Rest::Segments(segments) => capture(segments, text, &mut |_, _| {}),
        Rest::Anything => true,
        Rest::Nothing => text.is_empty(),
    }
}

fn first_from(ranks: &[u32], from: u32) -> u32 {
    ranks.get(ranks.partition_point(|rank| *rank < from)).copied().unwrap_or(NONE)
}
