//! Regular expressions of configurations.

use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};
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
    /// Upper and lower case are the same.
    pub(crate) const CASELESS: Self =
        Self { caseless: true, multi_line: false, dot_all: false, extended: false, unicode: false, anchored: false };

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
    let text = if options.anchored { format!(r"\A(?:{pattern})") } else { pattern.to_owned() };
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

/// A list of expressions, all of which are tried in one pass over a text.
#[derive(Debug)]
pub(crate) struct Patterns {
    bytes: RegexSet,
    /// Those that are only possible with Unicode; for the others `.` is a byte, whatever the text.
    characters: RegexSet,
}

impl Patterns {
    /// Compiles a list; `path` is where it stands in the configuration.
    pub(crate) fn compile(path: &str, patterns: &[String], options: Options) -> Result<Self, Invalid> {
        let (mut bytes, mut characters) = (Vec::new(), Vec::new());
        for (at, pattern) in patterns.iter().enumerate() {
            let compiled = compile_as(pattern, options);
            let (_, unicode) = compiled.map_err(|message| Invalid::new(format!("{path}[{at}]"), message))?;
            if unicode { &mut characters } else { &mut bytes }.push(pattern);
        }
        let set = |patterns: &[&String], unicode| {
            RegexSetBuilder::new(patterns)
                .case_insensitive(options.caseless)
                .unicode(unicode)
                .size_limit(MOST_LIST_BYTES)
                .dfa_size_limit(MOST_BYTES)
                .build()
                .map_err(|error| Invalid::new(path, format!("the expressions are too large together: {error}")))
        };
        debug_assert!(options == Options { caseless: options.caseless, ..Options::default() });
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
        let list = |patterns: &[&str], options| {
            let owned: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
            Patterns::compile("list", &owned, options)
        };
        for (patterns, options, text, matches) in [
            (&["a", "^b"][..], Options::default(), &b"xbx"[..], false),
            (&["a", "^b"], Options::default(), b"bx", true),
            (&["A"], Options::default(), b"a", false),
            (&["A"], Options::CASELESS, b"a", true),
            // One that needs Unicode leaves the others as they are.
            (&["[\u{e4}]", "evil.bot"], Options::default(), b"evil\xffbot", true),
            (&["[\u{e4}]", "evil.bot"], Options::default(), "x\u{e4}".as_bytes(), true),
            (&[], Options::default(), b"a", false),
        ] {
            assert_eq!(list(patterns, options).unwrap().is_match(text), matches, "{patterns:?} {text:?}");
        }
        let fault = list(&["a", "(?!b)"], Options::default()).unwrap_err();
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
            (r"\w{1000}{1000}", "size limit"),
        ] {
            let error = compile(pattern, Options::default()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(Options::parse("jdo").unwrap_err().contains("'d'"));
    }
}
