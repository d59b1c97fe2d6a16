//! Texts with variables and with patterns of time in braces, such as `logs-{%Y.%m.%d}`.

use std::sync::OnceLock;

use jiff::Timestamp;
use jiff::fmt::StdFmtWrite;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::TimeZone;
use weir_expr::Template;
use weir_plugin::{Invalid, View};

/// A text with variables and patterns of time.
#[derive(Debug)]
pub(crate) struct TimePattern(Box<[Part]>);

#[derive(Debug)]
enum Part {
    Text(Template),
    /// A pattern of `strftime`.
    Time(Box<str>),
}

impl TimePattern {
    /// Compiles a text, which stands at `place`. Braces behind a `$` belong to a variable.
    ///
    /// # Errors
    /// A pattern of time or a variable that cannot be one.
    pub(crate) fn new(place: &str, text: &str) -> Result<Self, Invalid> {
        let fault = |error: String| Invalid::new(place, error);
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let (before, behind) = rest.split_at(at);
            literal.push_str(before);
            let Some(end) = behind.find('}') else { break };
            let (braces, after) = behind.split_at(end + 1);
            rest = after;
            if before.ends_with('$') {
                literal.push_str(braces);
                continue;
            }
            let pattern = braces.trim_start_matches('{').trim_end_matches('}');
            let now = Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC);
            jiff::fmt::strtime::format(pattern, &now).map_err(|error| fault(error.to_string()))?;
            Self::push_text(&mut parts, &std::mem::take(&mut literal)).map_err(fault)?;
            parts.push(Part::Time(pattern.into()));
        }
        literal.push_str(rest);
        Self::push_text(&mut parts, &literal).map_err(fault)?;
        Ok(Self(parts.into()))
    }

    fn push_text(parts: &mut Vec<Part>, text: &str) -> Result<(), String> {
        if !text.is_empty() {
            parts.push(Part::Text(Template::parse_lenient(text, false).map_err(|error| error.to_string())?));
        }
        Ok(())
    }

    /// Appends the text for an exchange: the time is the local time at which its request began.
    pub(crate) fn render(&self, x: View<'_>, out: &mut Vec<u8>) {
        for part in &self.0 {
            match part {
                Part::Text(text) => text.render(x.source(), out),
                Part::Time(pattern) => push_time(pattern, x.unix_ms(), out),
            }
        }
    }
}

fn push_time(pattern: &str, unix_ms: u64, out: &mut Vec<u8>) {
    static ZONE: OnceLock<TimeZone> = OnceLock::new();
    let stamp = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let zoned = stamp.unwrap_or_default().to_zoned(ZONE.get_or_init(TimeZone::system).clone());
    let mut text = Text(out);
    // The pattern was tried when it was compiled.
    let _ = BrokenDownTime::from(&zoned).format(pattern, StdFmtWrite(&mut text));
}

/// A vector that takes formatted text.
struct Text<'o>(&'o mut Vec<u8>);

impl std::fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, TimePattern, push_time};

    #[test]
    fn braces_are_patterns_of_time_unless_a_variable_has_them() {
        let shape = |text: &str| {
            let parts = TimePattern::new("index", text).map_err(|fault| fault.path);
            parts.map(|parts| parts.0.iter().map(|part| matches!(part, Part::Time(_))).collect::<Vec<_>>())
        };
        assert_eq!(shape("logs"), Ok(vec![false]));
        assert_eq!(shape("logs-{%Y}-{%m}x"), Ok(vec![false, true, false, true, false]));
        assert_eq!(shape("${host}-{%Y"), Ok(vec![false]));
        assert_eq!(shape("{%Y}"), Ok(vec![true]));
        assert_eq!(shape("{%!}"), Err("index".to_owned()));
        let mut out = Vec::new();
        push_time("%Y", 1_767_225_600_000 + 86_400_000 * 180, &mut out);
        assert_eq!(out, b"2026");
    }
}
