//! Regular expressions of configurations.

use regex::bytes::{Regex, RegexBuilder};

use crate::budget::{TooLarge, spend};
use crate::pcre::translate;

/// The most memory that the program of a compiled expression, and its cache in each thread, may take.
const MOST_BYTES: usize = 1 << 20;

/// Limits for the program of an expression, tried in this order, each with the memory that an expression takes whose program
/// fits: it is kept for both directions, with tables to skip text. An expression that is built cannot be asked for its size.
const SIZES: [(usize, u64); 4] =
    [(4 << 10, 8 << 10), (32 << 10, 64 << 10), (256 << 10, 512 << 10), (MOST_BYTES, 2 << 20)];

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

/// Takes out of the budget what an expression costs that something else compiles, in the syntax of the crate `regex`.
/// Whoever compiles it says what is wrong with it.
///
/// # Errors
/// It costs more than is left.
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

/// Builds an expression. What it costs is taken out of the budget step by step, before each try, and not given back.
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
        // A hundred large ones do not fit, and that shows at the first that does not.
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
