//! Regular expressions of configurations.

use regex::bytes::{Regex, RegexBuilder};

/// The most memory that a compiled expression, and its cache in each thread, may take.
const MOST_BYTES: usize = 1 << 20;

/// How an expression is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Options {
    caseless: bool,
    multi_line: bool,
    dot_all: bool,
    extended: bool,
    unicode: bool,
    anchored: bool,
}

impl Options {
    /// Reads the letters of nginx's Lua API. Those that only say how PCRE goes about its work mean nothing here.
    pub(super) fn parse(letters: &str) -> Result<Self, String> {
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
pub(super) fn compile(pattern: &str, options: Options) -> Result<Regex, String> {
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
    };
    // A class such as [äö] is only possible with Unicode.
    let built = build(options.unicode).or_else(|error| if options.unicode { Err(error) } else { build(true) });
    built.map_err(|error| {
        let text = error.to_string();
        let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
        format!("invalid regular expression '{pattern}': {reason}")
    })
}

#[cfg(test)]
mod tests {
    use super::{Options, compile};

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
