//! Builds a tree from the pieces a reader finds, whatever the language of the text.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Key, Kind, MAX_DEPTH, Mark, Node, RepeatedKey, push_index, push_name};
use crate::Diagnostic;
use crate::code::Code;

/// A tree in the making.
#[derive(Default)]
pub(super) struct Tree {
    open: Vec<Open>,
    /// The entries of all open mappings, innermost last: so a mapping gets room for just what it has, where there may be
    /// millions.
    entries: Vec<(Key, Node)>,
    root: Option<Node>,
    repeated: Vec<RepeatedKey>,
    keys: HashSet<Arc<str>>,
    misfit: Option<Diagnostic>,
}

/// A list or mapping that has not ended.
struct Open {
    mark: Mark,
    anchor: usize,
    content: Content,
}

enum Content {
    Seq(Vec<Node>),
    Map {
        /// Beginning of the mapping's entries.
        first: usize,
        key: Option<Key>,
        merged: Vec<Node>,
    },
}

impl Tree {
    /// True if the next scalar is a key.
    pub(super) fn wants_key(&self) -> bool {
        matches!(self.open.last(), Some(Open { content: Content::Map { key: None, .. }, .. }))
    }

    /// Number of open lists and mappings.
    pub(super) fn depth(&self) -> usize {
        self.open.len()
    }

    /// The path of the value that comes next.
    pub(super) fn path(&self) -> String {
        let mut path = String::new();
        for open in &self.open {
            match &open.content {
                Content::Seq(items) => push_index(&mut path, items.len()),
                Content::Map { key: Some(key), .. } if &*key.text == MERGE => push_name(&mut path, "<<"),
                Content::Map { key: Some(key), .. } => push_name(&mut path, &key.text),
                Content::Map { key: None, .. } => {}
            }
        }
        path
    }

    pub(super) fn key(&mut self, text: &str, mark: Mark) {
        let text = self.shared(text);
        if let Some(Open { content: Content::Map { key, .. }, .. }) = self.open.last_mut() {
            *key = Some(Key { text, mark });
        }
    }

    /// A merge key: the entries of its value are taken over.
    pub(super) fn merge_key(&mut self, mark: Mark) {
        self.key(MERGE, mark);
    }

    pub(super) fn open_seq(&mut self, mark: Mark, anchor: usize) -> Result<(), Diagnostic> {
        self.push(mark, anchor, Content::Seq(Vec::new()))
    }

    pub(super) fn open_map(&mut self, mark: Mark, anchor: usize) -> Result<(), Diagnostic> {
        self.push(mark, anchor, Content::Map { first: self.entries.len(), key: None, merged: Vec::new() })
    }

    /// Ends the innermost list or mapping. Returns its anchor with the value, if it has one.
    pub(super) fn close(&mut self) -> Option<(usize, Node)> {
        let Open { mark, anchor, content } = self.open.pop()?;
        let kind = match content {
            Content::Seq(mut items) => {
                items.shrink_to_fit();
                Kind::Seq(items)
            }
            Content::Map { first, merged, .. } => {
                let mut entries = self.entries.split_off(first);
                self.drop_repeated(&mut entries);
                merge(&mut entries, merged);
                Kind::Map(entries)
            }
        };
        let node = Node { mark, kind };
        let anchored = (anchor != 0).then(|| (anchor, node.clone()));
        self.value(node);
        anchored
    }

    /// A whole value in its place.
    pub(super) fn value(&mut self, node: Node) {
        let mut misfit = None;
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(node),
            Some(Content::Seq(items)) => items.push(node),
            Some(Content::Map { key, merged, .. }) => match key.take() {
                Some(key) if &*key.text == MERGE => match node.kind {
                    Kind::Map(_) => merged.push(node),
                    Kind::Seq(list) if list.iter().all(|item| item.as_map().is_some()) => merged.extend(list),
                    _ => misfit = Some(node),
                },
                Some(key) => self.entries.push((key, node)),
                None => {}
            },
        }
        if let Some(node) = misfit {
            let mut path = self.path();
            push_name(&mut path, "<<");
            let code = Code::MergeNotMapping { found: node.describe() };
            self.misfit.get_or_insert(Diagnostic::error(node.mark, path, code));
        }
    }

    /// Error for a merged value that is not a mapping.
    pub(super) fn take_misfit(&mut self) -> Result<(), Diagnostic> {
        self.misfit.take().map_or(Ok(()), Err)
    }

    pub(super) fn finish(self) -> (Node, Vec<RepeatedKey>) {
        (self.root.unwrap_or(Node::new(Kind::Null)), self.repeated)
    }

    /// The text of a key, which is often one that was there before.
    fn shared(&mut self, text: &str) -> Arc<str> {
        const REMEMBERED: usize = 4096;
        if let Some(known) = self.keys.get(text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        if self.keys.len() < REMEMBERED {
            self.keys.insert(text.clone());
        }
        text
    }

    fn push(&mut self, mark: Mark, anchor: usize, content: Content) -> Result<(), Diagnostic> {
        if self.open.len() >= MAX_DEPTH {
            return Err(Diagnostic::error(mark, "", Code::NestedTooDeep));
        }
        self.open.push(Open { mark, anchor, content });
        Ok(())
    }

    /// Keeps the last of several entries with one key, and records the repetition.
    fn drop_repeated(&mut self, entries: &mut Vec<(Key, Node)>) {
        const FEW: usize = 16;
        let unique = if entries.len() <= FEW {
            entries.iter().enumerate().all(|(i, (key, _))| entries[..i].iter().all(|(k, _)| k.text != key.text))
        } else {
            let mut keys: Vec<&str> = entries.iter().map(|(key, _)| &*key.text).collect();
            keys.sort_unstable();
            keys.windows(2).all(|pair| pair[0] != pair[1])
        };
        if unique {
            return;
        }
        let parent = self.path();
        let mut last: HashMap<Arc<str>, (usize, Mark)> = HashMap::new();
        let mut replaced = vec![false; entries.len()];
        for (at, (key, _)) in entries.iter().enumerate() {
            if let Some((earlier, first)) = last.insert(key.text.clone(), (at, key.mark)) {
                replaced[earlier] = true;
                let mut path = parent.clone();
                push_name(&mut path, &key.text);
                self.repeated.push(RepeatedKey { path, first, second: key.mark });
            }
        }
        let mut replaced = replaced.into_iter();
        entries.retain(|_| !replaced.next().unwrap_or(false));
    }
}

/// Adds the entries of merged mappings. Written entries take precedence over merged ones, and an earlier merged mapping
/// over a later one.
fn merge(entries: &mut Vec<(Key, Node)>, merged: Vec<Node>) {
    if merged.is_empty() {
        return;
    }
    let mut known: HashSet<Arc<str>> = entries.iter().map(|(key, _)| key.text.clone()).collect();
    for node in merged {
        if let Kind::Map(more) = node.kind {
            entries.extend(more.into_iter().filter(|(key, _)| known.insert(key.text.clone())));
        }
    }
}

/// The key of an entry that is merged: not a text that a document could hold.
const MERGE: &str = "\0<<";

/// Number of values in a tree.
pub(super) fn count(node: &Node) -> usize {
    1 + match &node.kind {
        Kind::Seq(items) => items.iter().map(count).sum(),
        Kind::Map(entries) => entries.iter().map(|(_, node)| count(node)).sum(),
        _ => 0,
    }
}

/// A finding about a key that is no text.
pub(super) fn not_a_key(mark: Mark, path: &str, found: String) -> Diagnostic {
    Diagnostic::error(mark, path, Code::KeyNotText { found })
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, Node};
    use crate::resource::{Consumer, PluginConf};

    /// A file may have a million consumers.
    #[test]
    fn what_there_are_many_of_is_small() {
        let text = "- {username: a, plugins: {key-auth: {key: k}}}\n- {uris: [/a, /b, /c], username: b}\n";
        let json = r#"[{"username": "a", "plugins": {"key-auth": {"key": "k"}}}, {"uris": ["/a", "/b", "/c"]}]"#;
        for text in [text, json] {
            assert_no_room_to_spare(&Node::parse(text).expect("a tree").root);
        }
        assert!(size_of::<Node>() <= 40 && size_of::<PluginConf>() <= 56 && size_of::<Consumer>() <= 216);
    }

    fn assert_no_room_to_spare(node: &Node) {
        match &node.kind {
            Kind::Seq(items) => {
                assert_eq!(items.capacity(), items.len());
                items.iter().for_each(assert_no_room_to_spare);
            }
            Kind::Map(entries) => {
                assert_eq!(entries.capacity(), entries.len());
                entries.iter().for_each(|(_, node)| assert_no_room_to_spare(node));
            }
            _ => {}
        }
    }
}
