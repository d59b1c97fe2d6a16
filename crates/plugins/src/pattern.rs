//! Regular expressions of configurations.

use crossbeam_queue::ArrayQueue;
use regex::bytes::{CaptureLocations, Regex, RegexSet, RegexSetBuilder};
use weir_expr::{RegexOptions, compile_regex};
use weir_plugin::Invalid;

/// The most memory that the cache of a list of expressions in each thread may take.
const MOST_CACHE_BYTES: usize = 1 << 20;
/// The most memory that a compiled list may take.
const MOST_LIST_BYTES: usize = 16 << 20;

/// Most groups of an expression, with the whole match: they stand on the stack.
pub(crate) const MOST_GROUPS: usize = 32;
/// Spare sets of groups kept for the next requests: one for each worker that matches at the same time.
const SPARE: usize = 64;

/// An expression whose groups are asked for.
#[derive(Debug)]
pub(crate) struct Grouped {
    regex: Regex,
    spare: ArrayQueue<CaptureLocations>,
}

/// A match of a [`Grouped`] expression in a text.
#[derive(Debug)]
pub(crate) struct Found<'t> {
    /// The texts of the groups, the whole match first; a group that matched nothing is empty.
    pub(crate) groups: [&'t [u8]; MOST_GROUPS],
    /// The text before the match.
    pub(crate) before: &'t [u8],
    /// The text after the match.
    pub(crate) after: &'t [u8],
}

impl Grouped {
    pub(crate) fn compile(pattern: &str, options: RegexOptions) -> Result<Self, String> {
        let (regex, _) = compile_regex(pattern, options)?;
        if regex.captures_len() > MOST_GROUPS {
            return Err(format!("expected at most {} groups", MOST_GROUPS - 1));
        }
        Ok(Self { regex, spare: ArrayQueue::new(SPARE) })
    }

    /// The first match. It allocates only when more workers than ever before match at the same time.
    pub(crate) fn find<'t>(&self, text: &'t [u8]) -> Option<Found<'t>> {
        let mut places = self.spare.pop().unwrap_or_else(|| self.regex.capture_locations());
        let found = self.regex.captures_read(&mut places, text).map(|whole| {
            let mut groups = [&[][..]; MOST_GROUPS];
            for (n, group) in groups.iter_mut().enumerate().take(places.len()) {
                let place = places.get(n).and_then(|(start, end)| text.get(start..end));
                *group = place.unwrap_or_default();
            }
            let [before, after] = [text.get(..whole.start()), text.get(whole.end()..)].map(Option::unwrap_or_default);
            Found { groups, before, after }
        });
        // Full: more workers matched at once than places are kept for.
        let _ = self.spare.push(places);
        found
    }
}

/// A list of expressions, all of which are tried in one pass over a text.
#[derive(Debug)]
pub(crate) struct Patterns {
    bytes: RegexSet,
    /// Those that are only possible with Unicode; for the others `.` is a byte, whatever the text.
    characters: RegexSet,
}

impl Patterns {
    /// Compiles a list; `path` is where it stands in the configuration.
    pub(crate) fn compile(path: &str, patterns: &[String], caseless: bool) -> Result<Self, Invalid> {
        let options = RegexOptions { caseless, ..RegexOptions::default() };
        let (mut bytes, mut characters) = (Vec::new(), Vec::new());
        for (at, pattern) in patterns.iter().enumerate() {
            let compiled = compile_regex(pattern, options);
            let (regex, unicode) = compiled.map_err(|message| Invalid::new(format!("{path}[{at}]"), message))?;
            if unicode { &mut characters } else { &mut bytes }.push(regex.as_str().to_owned());
        }
        let set = |patterns: &[String], unicode| {
            RegexSetBuilder::new(patterns)
                .case_insensitive(caseless)
                .unicode(unicode)
                .size_limit(MOST_LIST_BYTES)
                .dfa_size_limit(MOST_CACHE_BYTES)
                .build()
                .map_err(|error| Invalid::new(path, format!("the expressions are too large together: {error}")))
        };
        Ok(Self { bytes: set(&bytes, false)?, characters: set(&characters, true)? })
    }

    /// True if any of them matches anywhere in the text.
    pub(crate) fn is_match(&self, text: &[u8]) -> bool {
        (!self.bytes.is_empty() && self.bytes.is_match(text))
            || (!self.characters.is_empty() && self.characters.is_match(text))
    }
}

#[cfg(test)]
mod tests {
    use super::Patterns;

    #[test]
    fn any_of_a_list_matches() {
        let list = |patterns: &[&str], caseless| {
            let owned: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
            Patterns::compile("list", &owned, caseless)
        };
        for (patterns, caseless, text, matches) in [
            (&["a", "^b"][..], false, &b"xbx"[..], false),
            (&["a", "^b"], false, b"bx", true),
            (&["A"], false, b"a", false),
            (&["A"], true, b"a", true),
            // One that needs Unicode leaves the others as they are.
            (&["[\u{e4}]", "evil.bot"], false, b"evil\xffbot", true),
            (&["[\u{e4}]", "evil.bot"], false, "x\u{e4}".as_bytes(), true),
            (&[], false, b"a", false),
            (&[r"\<(script|img)"], false, b"/img/logo.png", false),
            (&[r"\<(script|img)"], false, b"/?<img", true),
        ] {
            assert_eq!(list(patterns, caseless).unwrap().is_match(text), matches, "{patterns:?} {text:?}");
        }
        let fault = list(&["a", "(?!b)"], false).unwrap_err();
        assert_eq!(fault.path, "list[1]");
        assert!(fault.code.to_string().contains("look-around"), "{}", fault.code);
    }
}
