//! Regular expressions of configurations.

use regex::bytes::{Regex, RegexBuilder};

use crate::pcre::translate;

/// The most memory that a compiled expression, and its cache in each thread, may take.
const MOST_BYTES: usize = 1 << 20;

/// How a regular expression is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegexOptions {
    /// Without regard to case.
    pub caseless: bool,
    /// `^` and `$` stand for the ends of lines too.
    pub multi_line: bool,
    /// `.` stands for line ends too.
    pub dot_all: bool,
    /// Blanks and comments are left aside.
    pub extended: bool,
    /// The text is characters instead of bytes.
    pub unicode: bool,
    /// It matches at the beginning of a text alone.
    pub anchored: bool,
}

impl RegexOptions {
    /// Reads the letters of nginx's Lua API. Those that only say how PCRE goes about its work mean nothing here.
    pub fn parse(letters: &str) -> Result<Self, String> {
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

/// Compiles a regular expression in the syntax of PCRE, in which APISIX's configurations are written. Text is bytes, as in
/// PCRE without UTF mode, unless the options or the expression ask for characters: which it is comes with it.
///
/// # Errors
/// What is wrong with the expression, and what PCRE has and a search in linear time has not, by its name.
pub fn compile_regex(pattern: &str, options: RegexOptions) -> Result<(Regex, bool), String> {
    let refuse = |reason: &str| format!("invalid regular expression '{pattern}': {reason}");
    let text = translate(pattern, options.extended).map_err(|reason| refuse(&reason))?;
    let text = if options.anchored { format!(r"\A(?:{text})") } else { text };
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
        refuse(text.lines().last().unwrap_or_default().trim_start_matches("error: "))
    })
}

#[cfg(test)]
mod tests {
    use super::{RegexOptions, compile_regex};

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
            let regex = compile_regex(pattern, RegexOptions::parse(options).unwrap()).unwrap().0;
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
            let error = compile_regex(pattern, RegexOptions::default()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(RegexOptions::parse("jdo").unwrap_err().contains("'d'"));
    }
}
