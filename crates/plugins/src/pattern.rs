//! Regular expressions of configurations.

use crossbeam_queue::ArrayQueue;
use regex::bytes::{CaptureLocations, Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use weir_expr::translate_pcre;
use weir_plugin::Invalid;

/// The most memory that a compiled expression, and its cache in each thread, may take.
const MOST_BYTES: usize = 1 << 20;
/// The same for a list of expressions.
const MOST_LIST_BYTES: usize = 16 << 20;

/// How an expression is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Options {
    caseless: bool,
    multi_line: bool,
    dot_all: bool,
    extended: bool,
    unicode: bool,
    anchored: bool,
}

impl Options {
    /// Reads the letters of nginx's Lua API. Those that only say how PCRE goes about its work mean nothing here.
    pub(crate) fn parse(letters: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for letter in letters.chars() {
            match letter {
                'i' => options.caseless = true,
                'm' => options.multi_line = true,
                's' => options.dot_all = true,
                'x' => options.extended = true,
                'u' | 'U' => options.unicode = true,
                'a' => options.anchored = true,
                'j' | 'o' => {}
                other => return Err(format!("option '{other}' is not supported: expected some of ajimosuxU")),
            }
        }
        Ok(options)
    }
}

/// Compiles an expression. Text is bytes, as in PCRE without UTF mode.
pub(crate) fn compile(pattern: &str, options: Options) -> Result<Regex, String> {
    compile_as(pattern, options).map(|(regex, _)| regex)
}

/// The expression, and whether it reads characters instead of bytes.
fn compile_as(pattern: &str, options: Options) -> Result<(Regex, bool), String> {
    let text = translate(pattern, options)?;
    let build = |unicode| {
        RegexBuilder::new(&text)
            .case_insensitive(options.caseless)
            .multi_line(options.multi_line)
            .dot_matches_new_line(options.dot_all)
            .ignore_whitespace(options.extended)
            .unicode(unicode)
            .size_limit(MOST_BYTES)
            .dfa_size_limit(MOST_BYTES)
            .build()
            .map(|regex| (regex, unicode))
    };
    // A class such as [äö] is only possible with Unicode.
    let built = build(options.unicode).or_else(|error| if options.unicode { Err(error) } else { build(true) });
    built.map_err(|error| {
        let text = error.to_string();
        let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
        format!("invalid regular expression '{pattern}': {reason}")
    })
}

/// The expression as the crate `regex` spells it.
fn translate(pattern: &str, options: Options) -> Result<String, String> {
    let text = translate_pcre(pattern, options.extended)
        .map_err(|reason| format!("invalid regular expression '{pattern}': {reason}"))?;
    Ok(if options.anchored { format!(r"\A(?:{text})") } else { text })
}

/// Most groups of an expression, with the whole match: they stand on the stack.
pub(crate) const MOST_GROUPS: usize = 32;
/// How many places for groups are kept for the next requests: one for each worker that matches at the same time.
const SPARE: usize = 64;

/// An expression whose groups are asked for.
#[derive(Debug)]
pub(crate) struct Grouped {
    regex: Regex,
    spare: ArrayQueue<CaptureLocations>,
}

/// What a [`Grouped`] expression found in a text.
#[derive(Debug)]
pub(crate) struct Found<'t> {
    /// What the groups matched, the whole match first; those that matched nothing are empty.
    pub(crate) groups: [&'t [u8]; MOST_GROUPS],
    /// What stands before the match.
    pub(crate) before: &'t [u8],
    /// What stands behind it.
    pub(crate) after: &'t [u8],
}

impl Grouped {
    pub(crate) fn compile(pattern: &str, options: Options) -> Result<Self, String> {
        let regex = compile(pattern, options)?;
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
        let options = Options { caseless, ..Options::default() };
        let (mut bytes, mut characters) = (Vec::new(), Vec::new());
        for (at, pattern) in patterns.iter().enumerate() {
            let compiled =
                compile_as(pattern, options).and_then(|(_, unicode)| Ok((translate(pattern, options)?, unicode)));
            let (text, unicode) = compiled.map_err(|message| Invalid::new(format!("{path}[{at}]"), message))?;
            if unicode { &mut characters } else { &mut bytes }.push(text);
        }
        let set = |patterns: &[String], unicode| {
            RegexSetBuilder::new(patterns)
                .case_insensitive(caseless)
                .unicode(unicode)
                .size_limit(MOST_LIST_BYTES)
                .dfa_size_limit(MOST_BYTES)
                .build()
                .map_err(|error| Invalid::new(path, format!("the expressions are too large together: {error}")))
        };
        Ok(Self { bytes: set(&bytes, false)?, characters: set(&characters, true)? })
    }

    /// Whether any of them matches anywhere in the text.
    pub(crate) fn is_match(&self, text: &[u8]) -> bool {
        (!self.bytes.is_empty() && self.bytes.is_match(text))
            || (!self.characters.is_empty() && self.characters.is_match(text))
    }
}

#[cfg(test)]
mod tests {
    use super::{Options, Patterns, compile};

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
        assert!(fault.message.contains("look-around"), "{}", fault.message);
    }

    #[test]
    fn options_change_what_matches() {
        for (options, pattern, text, matches) in [
            ("jo", "^/a/(.*)$", "/a/b", true),
            ("", "ABC", "xabcx", false),
            ("i", "ABC", "xabcx", true),
            ("", "^b$", "a\nb\nc", false),
            ("m", "^b$", "a\nb\nc", true),
            ("", "a.b", "a\nb", false),
            ("s", "a.b", "a\nb", true),
            ("x", "a b # c", "ab", true),
            ("a", "b|c", "abc", false),
            ("a", "b|a", "abc", true),
            ("", "[ä]", "ä", true),
            ("", "^.$", "ä", false),
            ("u", "^.$", "ä", true),
        ] {
            let regex = compile(pattern, Options::parse(options).unwrap()).unwrap();
            assert_eq!(regex.is_match(text.as_bytes()), matches, "{pattern} {options} {text:?}");
        }
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        for (pattern, reason) in [
            ("(?=a)", "look-around"),
            (r"(a)\1", "backreferences are not supported"),
            ("(", "unclosed group"),
            ("(?>a)", "atomic groups"),
            (r"\w{1000}{1000}", "size limit"),
        ] {
            let error = compile(pattern, Options::default()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(Options::parse("jdo").unwrap_err().contains("'d'"));
    }
}
