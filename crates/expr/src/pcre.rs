use std::fmt::Write;

/// Translates a PCRE pattern to the syntax of the crate `regex`; with `extended`, white space and comments are
/// ignored. Constructs with the same meaning in both are kept, and so are those that the crate itself refuses, such
/// as look-around.
///
/// # Errors
/// Name of a PCRE feature that a search in linear time cannot support.
pub(crate) fn translate(pattern: &str, extended: bool) -> Result<String, String> {
    let mut to = Translation { rest: pattern, out: String::with_capacity(pattern.len()), extended };
    while let Some(next) = to.next() {
        match next {
            '\\' => to.escape()?,
            '[' => to.class(),
            '(' => to.group()?,
            '{' => to.brace()?,
            '?' if to.rest.starts_with('+') => return Err(POSSESSIVE.to_owned()),
            '#' if extended => {
                let end = to.rest.find('\n').unwrap_or(to.rest.len());
                to.skip(end);
            }
            other => to.out.push(other),
        }
    }
    Ok(to.out)
}

const POSSESSIVE: &str = "possessive quantifiers are not supported";

/// Horizontal and vertical white space: the content of a class for `\h` and `\v`.
const HORIZONTAL: &str = r"\t\x20\xA0";
const VERTICAL: &str = r"\n\x0B\f\r\x85";

struct Translation<'a> {
    rest: &'a str,
    out: String,
    extended: bool,
}

impl Translation<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.skip(next.len_utf8());
        Some(next)
    }

    fn skip(&mut self, length: usize) {
        self.rest = &self.rest[length..];
    }

    fn copy(&mut self, length: usize) {
        self.out.push_str(&self.rest[..length]);
        self.skip(length);
    }

    /// Writes a character that stands for itself.
    fn literal(&mut self, character: char) {
        if self.extended && character.is_ascii_whitespace() {
            // Writing to a string cannot fail.
            let _ = write!(self.out, r"\x{:02X}", u32::from(character));
            return;
        }
        if character.is_ascii_punctuation() && !matches!(character, '<' | '>' | '_') {
            self.out.push('\\');
        }
        self.out.push(character);
    }

    /// Copies literal text up to `\E`.
    fn quoted(&mut self) {
        let (text, rest) = self.rest.split_once(r"\E").unwrap_or((self.rest, ""));
        text.chars().for_each(|character| self.literal(character));
        self.rest = rest;
    }

    fn escape(&mut self) -> Result<(), String> {
        let Some(next) = self.next() else {
            self.out.push('\\');
            return Ok(());
        };
        let _ = match next {
            'h' => write!(self.out, "[{HORIZONTAL}]"),
            'H' => write!(self.out, "[^{HORIZONTAL}]"),
            'v' => write!(self.out, "[{VERTICAL}]"),
            'V' => write!(self.out, "[^{VERTICAL}]"),
            'R' => write!(self.out, r"(?:\r\n|[{VERTICAL}])"),
            'N' if !self.rest.starts_with('{') => write!(self.out, r"[^\n]"),
            'Z' => write!(self.out, r"(?:\n?\z)"),
            'g' | 'k' => return Err("backreferences are not supported".to_owned()),
            'C' | 'G' | 'K' | 'X' => return Err(format!(r"\{next} is not supported")),
            _ => {
                self.common_escape(next);
                Ok(())
            }
        };
        Ok(())
    }

    /// Translates an escape that is the same inside and outside of a class.
    fn common_escape(&mut self, next: char) {
        match next {
            'Q' => self.quoted(),
            'E' => {}
            'e' => self.out.push_str(r"\x1B"),
            _ if next.is_ascii_alphanumeric() => {
                self.out.extend(['\\', next]);
                if matches!(next, 'o' | 'p' | 'P' | 'x') && self.rest.starts_with('{') {
                    let end = self.rest.find('}').map_or(self.rest.len(), |end| end + 1);
                    self.copy(end);
                }
            }
            _ => self.literal(next),
        }
    }

    /// Translates a repetition, or a literal brace.
    fn brace(&mut self) -> Result<(), String> {
        let counts = self.rest.split_once('}').map_or("", |(counts, _)| counts);
        let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let repeats = match counts.split_once(',') {
            Some((least, most)) => number(least) && (most.is_empty() || number(most)),
            None => number(counts),
        };
        if !repeats {
            self.out.push_str(r"\{");
            return Ok(());
        }
        self.out.push('{');
        self.copy(counts.len() + 1);
        if self.rest.starts_with('+') { Err(POSSESSIVE.to_owned()) } else { Ok(()) }
    }

    fn group(&mut self) -> Result<(), String> {
        if self.rest.starts_with('*') {
            return Err("verbs such as (*SKIP) are not supported".to_owned());
        }
        if let Some(comment) = self.rest.strip_prefix("?#") {
            let end = comment.find(')').ok_or("a comment is not closed")?;
            self.skip(2 + end + 1);
            return Ok(());
        }
        self.out.push('(');
        let Some(kind) = self.rest.strip_prefix('?') else { return Ok(()) };
        let refused = match kind.as_bytes() {
            [b'>', ..] => "atomic groups are not supported",
            [b'|', ..] => "branch reset groups (?|...) are not supported",
            [b'(', ..] => "conditional groups are not supported",
            [b'C', ..] => "callouts are not supported",
            [b'P', b'=', ..] => "backreferences are not supported",
            [b'R' | b'&' | b'0'..=b'9', ..] | [b'P', b'>', ..] | [b'+' | b'-', b'0'..=b'9', ..] => {
                "recursion is not supported"
            }
            [b'\'', ..] => "a named group is written (?<name>...) here",
            _ => {
                self.copy(1);
                return Ok(());
            }
        };
        Err(refused.to_owned())
    }

    /// Translates a class of characters; the crate `regex` has nested classes and operators there.
    fn class(&mut self) {
        self.out.push('[');
        if self.rest.starts_with('^') {
            self.copy(1);
        }
        // True if the last item can begin a range, and true if a `-` has made it one.
        let (mut begins, mut open) = (false, false);
        let mut first = true;
        while let Some(next) = self.next() {
            let single = match next {
                ']' if !first => {
                    self.out.push(']');
                    return;
                }
                '-' if begins && !open && !self.rest.starts_with(']') => {
                    self.out.push('-');
                    open = true;
                    continue;
                }
                '[' if self.rest.starts_with(':') && self.rest.contains(":]") => {
                    self.out.push('[');
                    let end = self.rest.find(":]").map_or(0, |end| end + 2);
                    self.copy(end);
                    false
                }
                '\\' => self.class_escape(),
                '[' | ']' | '-' | '&' | '~' | '#' | '\t' | '\n' | '\x0c' | '\r' | ' ' => {
                    self.literal(next);
                    true
                }
                other => {
                    self.out.push(other);
                    true
                }
            };
            (begins, open) = (single && !open, false);
            first = false;
        }
    }

    /// Translates an escape in a class; returns true if it is a single character.
    fn class_escape(&mut self) -> bool {
        let Some(next) = self.next() else {
            self.out.push('\\');
            return true;
        };
        match next {
            'h' => self.out.push_str(HORIZONTAL),
            'v' => self.out.push_str(VERTICAL),
            'H' | 'V' => {
                let blanks = if next == 'H' { HORIZONTAL } else { VERTICAL };
                let _ = write!(self.out, "[^{blanks}]");
            }
            'b' => self.out.push_str(r"\x08"),
            _ => self.common_escape(next),
        }
        !matches!(next, 'd' | 'D' | 'h' | 'H' | 'p' | 'P' | 's' | 'S' | 'v' | 'V' | 'w' | 'W')
    }
}

#[cfg(test)]
mod tests {
    use super::translate;
    use crate::pattern::{RegexOptions, compile_regex};

    fn matches(pattern: &str, text: &[u8], extended: bool) -> bool {
        let options = RegexOptions { extended, ..RegexOptions::default() };
        compile_regex(pattern, options).unwrap_or_else(|error| panic!("{error}")).0.is_match(text)
    }

    #[test]
    fn patterns_mean_what_they_mean_to_pcre() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            (r"\<(script|img)\>", &["<img>"], &["/img/logo.png", "img"]),
            (r"^a\hb$", &["a b", "a\tb"], &["a\nb", "ahb"]),
            (r"^a\Hb$", &["a-b"], &["a b"]),
            (r"^a[\h.]b$", &["a b", "a.b"], &["ahb"]),
            (r"^a[^\h]b$", &["a.b"], &["a b"]),
            (r"^[\H]$", &["a"], &[" "]),
            (r"^a\vb$", &["a\nb", "a\x0bb"], &["a b", "avb"]),
            (r"^a\Rb$", &["a\r\nb", "a\rb", "a\nb"], &["ab", "a\n\nb"]),
            (r"^a\Nb$", &["a.b"], &["a\nb"]),
            (r"^a\Z", &["a", "a\n"], &["a\n\n", "ab"]),
            (r"^\Qa.b*[\E.$", &["a.b*[x"], &["aab*[x", "a.b*["]),
            (r"^\Qa.b", &["a.bc"], &["aab"]),
            (r"^[\Q^]-\Ea]+$", &["^]-a"], &["b"]),
            (r"^a\E$", &["a"], &[]),
            (r"^a{b}$", &["a{b}"], &["ab"]),
            (r"^{a}{,2}$", &["{a}{,2}"], &["a"]),
            (r"^a{2}b{1,}c{1,2}$", &["aabbc"], &["abc"]),
            (r"\{\$ne\}", &["{$ne}"], &["ne"]),
            (r"^\x{41}\x42$", &["AB"], &["x41"]),
            (r"^a\b{start}", &["a{start}"], &["a"]),
            (r"^[a&&b]+$", &["a&b"], &["c"]),
            (r"^[a~~b]+$", &["a~b"], &["c"]),
            (r"^[+--]+$", &["+,-"], &["."]),
            (r"^[--/]+$", &["-./"], &[","]),
            (r"^[\w-.]+$", &["a-."], &[","]),
            (r"^[a-c-e]+$", &["abc-e"], &["d"]),
            (r"^[^a-]$", &["b"], &["a", "-"]),
            (r"^[[]$", &["["], &["]"]),
            (r"^[a[b]+$", &["a[b"], &["]"]),
            (r"^[]a]+$", &["]a"], &["b"]),
            (r"^[^]a]+$", &["b"], &["]", "a"]),
            (r"^[[:alpha:]_]+$", &["a_"], &[":", "1"]),
            (r"^[\<\>]$", &["<", ">"], &["\\"]),
            (r"^[\b]$", &["\x08"], &["b"]),
            (r"^[\]\\]+$", &["]\\"], &["a"]),
            (r"^a(?#no (b)c$", &["ac"], &["a"]),
            (r"^(?<n>a)(?P<m>b)(?:c)(?i:D)$", &["abcd"], &["abc"]),
            (r"^a??b+?c*?$", &["abbc"], &["ac"]),
            (r"^a++b*+$", &["aabb"], &["b"]),
            (r"\/\-\:\_\%\@\!\'\é", &["/-:_%@!'é"], &["/"]),
            (r"^\e$", &["\x1b"], &["e"]),
        ];
        for (pattern, matching, others) in cases {
            for text in *matching {
                assert!(matches(pattern, text.as_bytes(), false), "{pattern} has to match {text:?}");
            }
            for text in *others {
                assert!(!matches(pattern, text.as_bytes(), false), "{pattern} must not match {text:?}");
            }
        }
        assert!(matches(r"\h", b"\xa0", false) && !matches(r"^.\h$", b"a\xc2", false));
    }

    #[test]
    fn blanks_and_comments_are_left_aside_where_asked_for() {
        for (pattern, text) in [
            ("a [ #] b # c [ (?>", "a b"),
            ("a [ #] b # c [ (?>", "a#b"),
            ("^ a # [\n b $", "ab"),
            (r"^ \Qa b\E $", "a b"),
            (r"^ a\ b $", "a b"),
        ] {
            assert!(matches(pattern, text.as_bytes(), true), "{pattern} {text}");
        }
    }

    #[test]
    fn what_pcre_alone_can_do_is_named() {
        for (pattern, reason) in [
            ("(?>a)", "atomic groups"),
            ("(?|a|b)", "branch reset"),
            (r"a\Kb", r"\K is not supported"),
            (r"\Ga", r"\G is not supported"),
            (r"(?<n>a)\k<n>", "backreferences"),
            (r"(a)\g1", "backreferences"),
            ("(?P<n>a)(?P=n)", "backreferences"),
            ("(?R)", "recursion"),
            ("(a(?1)?)", "recursion"),
            ("(?(1)a|b)", "conditional"),
            ("(*SKIP)a", "verbs"),
            ("(?'n'a)", "(?<name>...)"),
            ("a?+", "possessive"),
            ("a{2}+", "possessive"),
            ("(?#a", "not closed"),
        ] {
            let error = translate(pattern, false).unwrap_err();
            assert!(error.contains(reason), "{pattern}: {error}");
        }
    }

    /// Every pattern is either translated or refused.
    #[test]
    fn no_pattern_is_too_odd() {
        let alphabet: Vec<char> = r"\\[[]](){}?*+-^:=!&~#<>|QEhHvRNZxopgkPC,19a é€".chars().chain(['\n']).collect();
        let mut state = 7_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut translated = 0;
        for round in 0..100_000 {
            let pattern: String = (0..random(24)).map(|_| alphabet[random(alphabet.len())]).collect();
            translated += usize::from(translate(&pattern, round % 2 == 0).is_ok());
        }
        assert!((10_000..100_000).contains(&translated), "{translated} are translated");
    }
}
