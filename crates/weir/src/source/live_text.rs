//! The text of the live rules file, kept for the control API and for comparison with the next text.
//!
//! The text is kept as it was read, because the file may have been written since, and compressed to about a tenth of the
//! file, because a parsed document takes more memory than the whole compiled configuration. A text with an end marker is
//! not kept if no API shows it.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use tokio::sync::Notify;
use weir_config::load::{Ending, Written, items};
use weir_config::node::Mark;
use weir_config::{Code, Diagnostic, ResourceKind};

use crate::source::rules::{FRONT_ENDS, fingerprint};

/// The live text.
#[derive(Debug)]
pub(crate) struct LiveText {
    kept: Mutex<Kept>,
    /// Notified of every new live text.
    changed: Notify,
}

/// A compressed text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    revision: u64,
    text: Arc<[u8]>,
    /// Paths of items that are invalid and were left out.
    left_out: HashSet<String>,
}

impl Kept {
    /// Compresses a text. Must run on a thread that may block.
    pub(crate) fn new(text: &[u8], revision: u64) -> Self {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        // Writing to memory does not fail.
        let text = encoder.write_all(text).and_then(|()| encoder.finish()).unwrap_or_default();
        Self { revision, text: text.into(), left_out: HashSet::new() }
    }

    /// Excludes the items with these paths.
    pub(crate) fn without(self, left_out: HashSet<String>) -> Self {
        Self { left_out, ..self }
    }

    /// Paths of the items that were left out.
    pub(crate) fn left_out(&self) -> impl Iterator<Item = String> {
        self.left_out.iter().cloned()
    }

    /// The revision of the text.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// The items in force of a section. Must run on a thread that may block.
    pub(crate) fn items(&self, kind: ResourceKind) -> Vec<Written> {
        let mut text = Vec::new();
        if DeflateDecoder::new(&*self.text).read_to_end(&mut text).is_err() {
            return Vec::new();
        }
        let mut found = items(&text, kind, &|name| std::env::var(name).ok(), FRONT_ENDS);
        found.retain(|item| !self.left_out.contains(&item.path));
        found
    }

    /// True if this text begins with `text` and is longer. Must run on a thread that may block.
    fn goes_on_after(&self, text: &[u8]) -> bool {
        let mut decoder = DeflateDecoder::new(&*self.text);
        let mut piece = [0; 8 * 1024];
        let mut text = text.trim_ascii_end();
        loop {
            let Ok(count @ 1..) = decoder.read(&mut piece) else { return false };
            let piece = &piece[..count];
            let common = count.min(text.len());
            let (same, more) = piece.split_at(common);
            if !text.starts_with(same) {
                return false;
            }
            text = &text[common..];
            if !more.trim_ascii().is_empty() {
                return true;
            }
        }
    }
}

/// A version of the rules file, for comparison with the next one.
#[derive(Clone, Debug)]
pub(crate) struct FileText {
    pub(crate) fingerprint: u64,
    pub(crate) ending: Ending,
    /// The text, unless it has an end marker and no API shows it.
    pub(crate) kept: Kept,
}

impl FileText {
    /// Keeps the needed parts of a text. `shown` is true if an API shows the text. Must run on a thread that may block.
    pub(crate) fn new(text: &[u8], revision: u64, shown: bool) -> Self {
        let ending = Ending::of(text);
        let needed = shown || ending != Ending::Shown;
        let kept = if needed { Kept::new(text, revision) } else { Kept::default() };
        Self { fingerprint: fingerprint(text), ending, kept }
    }

    /// The reason why a text must not replace this one: it is cut off, or seems to be.
    pub(crate) fn refuses(&self, next: &[u8]) -> Option<Diagnostic> {
        let ending = Ending::of(next);
        if ending < self.ending {
            let code = ending.code()?;
            let hint = match ending {
                Ending::Empty => {
                    "an empty file does not replace the live configuration; to remove every route write: routes: []"
                }
                _ => "the live file has an end marker, so its replacement needs one: end the file with a line #END",
            };
            return Some(Diagnostic::error(Mark::NONE, "", code).with_hint(hint));
        }
        if ending == Ending::Open && self.kept.goes_on_after(next) {
            return Some(
                Diagnostic::error(Mark::NONE, "", Code::CutOff)
                    .with_hint("to remove the rest, end the file with a line #END"),
            );
        }
        None
    }
}

impl LiveText {
    pub(crate) fn new(first: Kept) -> Self {
        Self { kept: Mutex::new(first), changed: Notify::new() }
    }

    /// Replaces the live text.
    pub(crate) fn set(&self, kept: Kept) {
        *self.lock() = kept;
        self.changed.notify_one();
    }

    /// Waits for the next live text. Only one task may wait.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The live text.
    pub(crate) fn kept(&self) -> Kept {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use weir_config::ResourceKind;
    use weir_config::load::Ending;

    use super::{FileText, Kept, LiveText};

    /// A text that is cut off does not replace a whole one.
    #[test]
    fn what_is_live_is_replaced_by_no_part_of_it() {
        const LONG: &str = "routes:\n- {id: a, uri: /a}\n- {id: b, uri: /b}\n";
        let large = "x".repeat(100_000);
        let text = |ending: Ending| ending.code().map(|code| code.to_string()).unwrap_or_default();
        let (empty, no_end) = (&*text(Ending::Empty), &*text(Ending::Open));
        let beginning = "only the beginning of the live one";
        let cases = [
            // The live text, the next text, part of the message.
            ("routes: []\n#END\n", "routes: []\n", no_end),
            ("routes: []\n#END\n", "routes: [] #EN", no_end),
            ("routes: []\n#END\n", "", empty),
            ("routes: []\n#END\n", "routes:\n#END\n", ""),
            ("routes: []\n#END\n", "{\"routes\": []}", ""),
            ("{\"routes\": []}", "routes: []\n", no_end),
            ("{\"routes\": []}", "# soon\n", empty),
            (LONG, "", empty),
            (LONG, "\n", empty),
            (LONG, "routes:\n- {id: a, uri: /a}\n", beginning),
            (LONG, "routes:\n- {id: a, uri: /", beginning),
            (LONG, LONG, ""),
            (LONG, LONG.trim_end(), ""),
            (LONG, "routes:\n- {id: b, uri: /b}\n", ""),
            (LONG, "routes:\n- {id: a, uri: /a}\n#END\n", ""),
            (&large, &large[1..], beginning),
            (&large, &format!("{}y", &large[1..]), ""),
            (&large, &format!("{large}x"), ""),
        ];
        for (live, next, said) in cases {
            let found = FileText::new(live.as_bytes(), 1, false)
                .refuses(next.as_bytes())
                .map(|found| found.to_string())
                .unwrap_or_default();
            let short = |text: &str| text.chars().take(60).collect::<String>();
            let is_as_expected = if said.is_empty() { found.is_empty() } else { found.contains(said) };
            assert!(is_as_expected, "{:?} after {:?}: {found:?}", short(next), short(live));
        }
    }

    #[test]
    fn what_is_live_is_told() {
        let live = LiveText::new(Kept::new(b"services: [{id: s}]\n#END\n", 1));
        assert_eq!((live.kept().revision(), live.kept().items(ResourceKind::Services).len()), (1, 1));
        let text = b"routes: [{id: a, uri: /a}, {id: b, uri: 1}, {id: c, uri: /c}]\n#END\n";
        live.set(Kept::new(text, 7).without(["routes[1]".to_owned()].into()));
        let (revision, items) = (live.kept().revision(), live.kept().items(ResourceKind::Routes));
        let ids: Vec<_> = items.iter().map(|item| item.id.as_str()).collect();
        assert_eq!((revision, ids.as_slice()), (7, ["a", "c"].as_slice()));
        assert!(live.kept().items(ResourceKind::Services).is_empty());
    }
}
