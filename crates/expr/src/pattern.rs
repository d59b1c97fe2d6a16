//! Regular expressions in configurations.

use regex::bytes::{Regex, RegexBuilder};

use crate::budget::{TooLarge, spend};
use crate::pcre::translate;

/// Maximum memory in bytes for the program of a compiled expression, and for its cache in each thread.
const MOST_BYTES: usize = 1 << 20;

/// Limits of an expression's program, tried in this order, each with the memory charged for an expression whose
/// program fits: the program is stored for both directions, with tables for skipping text. A compiled expression does
/// not report its own size.
const SIZES: [(usize, u64); 4] =
    [(4 << 10, 8 << 10), (32 << 10, 64 << 10), (256 << 10, 512 << 10), (MOST_BYTES, 2 << 20)];

/// Options of a regular expression.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegexOptions {
    /// Case-insensitive matching.
    pub caseless: bool,
    /// `^` and `$` also match at line ends.
    pub multi_line: bool,
    /// `.` also matches line ends.
    pub dot_all: bool,
    /// White space and comments in the pattern are ignored.
    pub extended: bool,
    /// The text is characters instead of bytes.
    pub unicode: bool,
    /// The pattern matches only at the beginning of a text.
    pub anchored: bool,
}

impl RegexOptions {
    /// Parses the option letters of nginx's Lua API. Letters that only tune PCRE's execution are accepted without
    /// effect.
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

/// Compiles a regular expression in the syntax of PCRE, which APISIX's configurations use. Text is bytes, as in PCRE
/// without UTF mode, unless the options or the expression require characters; the returned flag is true for
/// characters.
///
/// # Errors
/// Description of the fault, or the name of a PCRE feature that a search in linear time cannot support.
pub fn compile_regex(pattern: &str, options: RegexOptions) -> Result<(Regex, bool), String> {
    let refuse = |reason: &str| format!("invalid regular expression '{pattern}': {reason}");
    let text = translate(pattern, options.extended).map_err(|reason| refuse(&reason))?;
    let text = if options.anchored { format!(r"\A(?:{text})") } else { text };
    let build = |unicode| {
        let mut builder = RegexBuilder::new(&text);
        builder
            .case_insensitive(options.caseless)
            .multi_line(options.multi_line)
            .dot_matches_new_line(options.dot_all)
            .ignore_whitespace(options.extended)
            .unicode(unicode)
            .dfa_size_limit(MOST_BYTES);
        build_within_budget(&mut builder).map(|regex| (regex, unicode))
    };
    // A class such as [äö] is only possible with Unicode.
    let built = match build(options.unicode) {
        Err(Refusal::Wrong(_)) if !options.unicode => build(true),
        built => built,
    };
    built.map_err(|error| {
        let text = error.to_string();
        refuse(text.lines().last().unwrap_or_default().trim_start_matches("error: "))
    })
}

/// Charges the budget for an expression in the syntax of the crate `regex` that other code compiles. That code also
/// reports errors in the expression.
///
/// # Errors
/// The expression costs more than is left.
pub fn spend_for_regex(pattern: &str) -> Result<(), TooLarge> {
    match build_within_budget(RegexBuilder::new(pattern).dfa_size_limit(MOST_BYTES)) {
        Err(Refusal::TooLarge(error)) => Err(error),
        _ => Ok(()),
    }
}

#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Wrong(#[from] regex::Error),
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// Builds an expression. Its cost is charged step by step, before each attempt, and not returned.
fn build_within_budget(builder: &mut RegexBuilder) -> Result<Regex, Refusal> {
    let mut paid = 0;
    for (program, bytes) in SIZES {
        spend(bytes - paid)?;
        paid = bytes;
        match builder.size_limit(program).build() {
            Err(regex::Error::CompiledTooBig(_)) if program < MOST_BYTES => {}
            done => return Ok(done?),
        }
    }
    Err(regex::Error::CompiledTooBig(MOST_BYTES).into())
}

#[cfg(test)]
mod tests {
    use super::{RegexOptions, compile_regex, spend_for_regex};
    use crate::budget::metered;

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
    fn a_budget_bounds_what_is_compiled() {
        let plain = RegexOptions::default();
        let cost = |pattern| metered(u64::MAX, || compile_regex(pattern, plain).map(drop)).1;
        assert!(cost("^/x/(.*)") < cost(r"\w{1000}") && cost(r"\w{1000}") < cost("(abc){5000}"));
        // A hundred large expressions exceed the budget, which is detected at the first one that does not fit.
        let (refused, spent) = metered(1 << 20, || (0..100).position(|_| compile_regex(r"\w{1000}", plain).is_err()));
        assert!(refused.is_some_and(|at| at > 0) && spent <= 1 << 20, "{refused:?} {spent}");
        let (error, _) = metered(100, || compile_regex("a", plain).map(drop).unwrap_err());
        assert!(error.contains("limits.compiled_size"), "{error}");
        assert!(metered(100, || spend_for_regex("a")).0.is_err());
        assert!(metered(1 << 20, || spend_for_regex("(")).0.is_ok(), "its own compiler says what is wrong");
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
