//! Arguments of a query.

use jiff::Timestamp;

use super::QueryError;
use crate::database::{Keep, Level};
use crate::table::{CALLER, DIMENSIONS};

/// Arguments of a question, as names and values; see [`QUESTIONS`].
#[derive(Debug, Clone, Default)]
pub struct Arguments(pub Vec<(String, String)>);

/// The arguments that are known, and their meaning.
#[rustfmt::skip]
pub const QUESTIONS: &[(&str, &str)] = &[
    ("from", "the beginning: a time as in RFC 3339, seconds since 1970, or a time before now such as `-90m`, `-24h`, `-30d`; `-1h` unless told"),
    ("to", "the end, in the same forms; now unless told"),
    ("step", "`minute`, `hour` or `day`: a row for each of them; without it one for the whole time"),
    ("group_by", "dimensions with commas between them: `api`, `route`, `consumer`, `key`, `plan`, `status`"),
    ("api", "only requests of this service, or of this route without a service; may stand several times, as all filters may"),
    ("route", "only requests of this route"),
    ("consumer", "only requests of this consumer"),
    ("key", "only requests with this credential"),
    ("plan", "only requests on this plan"),
    ("status", "only answers of this class, such as `5xx`"),
    ("percentiles", "of latency, with commas between them, such as `50,99.9`; `50,95,99` unless told"),
    ("sort", "the column whose largest values come first, such as `server_errors`; `requests` unless told"),
    ("limit", "so many groups at most: 1 to 10000, 100 unless told"),
    ("format", "`json` or `csv`; `json` unless told"),
];

/// Name of the dimension that is no name in a record.
pub(crate) const STATUS: &str = "status";

/// Most groups in an answer, and when nothing is said.
const MOST_GROUPS: usize = 10_000;
const GROUPS: usize = 100;
/// Most rows of an answer.
pub(crate) const MOST_ROWS: u64 = 100_000;
/// Most percentiles of an answer.
const MOST_PERCENTILES: usize = 16;
/// Longest time that is read by the minute and by the hour, in days.
const MINUTE_DAYS: u64 = 7;
const HOUR_DAYS: u64 = 100;
const DAY: u64 = 24 * 60;

/// A question that makes sense. Times are in minutes since 1970.
#[derive(Debug, PartialEq)]
pub(crate) struct Question {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// `None`: one row for all of the time.
    pub(crate) step: Option<Level>,
    /// The finest level that is read.
    pub(crate) finest: Level,
    /// Positions in [`DIMENSIONS`]; the one behind the last is the status.
    pub(crate) group_by: Vec<usize>,
    /// Allowed values by dimension, empty for all; the last one has classes of status.
    pub(crate) filters: [Vec<String>; DIMENSIONS.len() + 1],
    pub(crate) percentiles: Vec<f64>,
    pub(crate) sort: Sort,
    pub(crate) limit: usize,
    pub(crate) csv: bool,
}

/// Column that decides about the order of groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Requests,
    ClientErrors,
    ServerErrors,
    BytesReceived,
    BytesSent,
    Latency,
    UpstreamLatency,
}

impl Sort {
    pub(crate) const ALL: [(&str, Self); 7] = [
        ("requests", Self::Requests),
        ("client_errors", Self::ClientErrors),
        ("server_errors", Self::ServerErrors),
        ("bytes_received", Self::BytesReceived),
        ("bytes_sent", Self::BytesSent),
        ("latency_ms", Self::Latency),
        ("upstream_latency_ms", Self::UpstreamLatency),
    ];
}

fn bad<T>(text: impl Into<String>) -> Result<T, QueryError> {
    Err(QueryError::Bad(text.into()))
}

fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

impl Arguments {
    fn one(&self, name: &str) -> Result<Option<&str>, QueryError> {
        let mut found = self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        match (found.next(), found.next()) {
            (_, Some(_)) => bad(format!("{name}: expected once, found several times")),
            (value, None) => Ok(value),
        }
    }

    pub(crate) fn parse(&self, keep: &Keep, now: u64) -> Result<Question, QueryError> {
        if let Some((unknown, _)) = self.0.iter().find(|(name, _)| QUESTIONS.iter().all(|(known, _)| known != name)) {
            let known = listed(QUESTIONS.iter().map(|(name, _)| *name));
            return bad(format!("{unknown}: unknown argument; known are {known}"));
        }
        let step = match self.one("step")? {
            None => None,
            Some("minute") => Some(Level::Minute),
            Some("hour") => Some(Level::Hour),
            Some("day") => Some(Level::Day),
            Some(other) => return bad(format!("step: expected minute, hour or day, found {other}")),
        };
        let from = time("from", self.one("from")?.unwrap_or("-1h"), now)?;
        let to = time("to", self.one("to")?.unwrap_or("-0m"), now)?;
        if from >= to {
            return bad(format!("from: expected a time before `to`, found {from} and {to} in seconds since 1970"));
        }
        let mut group_by = Vec::new();
        for name in self.one("group_by")?.unwrap_or_default().split(',').filter(|name| !name.is_empty()) {
            let Some(dimension) = DIMENSIONS.iter().chain([&STATUS]).position(|known| *known == name) else {
                let known = listed(DIMENSIONS.into_iter().chain([STATUS]));
                return bad(format!("group_by: {name}: unknown dimension; known are {known}"));
            };
            if group_by.contains(&dimension) {
                return bad(format!("group_by: {name} stands there twice"));
            }
            group_by.push(dimension);
        }
        let mut filters: [Vec<String>; DIMENSIONS.len() + 1] = Default::default();
        for (name, allowed) in DIMENSIONS.iter().chain([&STATUS]).zip(&mut filters) {
            allowed.extend(self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.clone()));
        }
        if let Some(wrong) = filters.last().into_iter().flatten().find(|class| class_of(class).is_none()) {
            return bad(format!("status: expected 1xx, 2xx, 3xx, 4xx or 5xx, found {wrong}"));
        }
        let sort = self.one("sort")?.unwrap_or("requests");
        let Some((_, sort)) = Sort::ALL.iter().find(|(name, _)| *name == sort) else {
            return bad(format!("sort: {sort}: unknown column; known are {}", listed(Sort::ALL.map(|(name, _)| name))));
        };
        let limit = match self.one("limit")? {
            None => Some(GROUPS),
            Some(text) => text.parse().ok().filter(|limit| (1..=MOST_GROUPS).contains(limit)),
        };
        let Some(limit) = limit else { return bad(format!("limit: expected 1 to {MOST_GROUPS}")) };
        let csv = match self.one("format")? {
            None | Some("json") => false,
            Some("csv") => true,
            Some(other) => return bad(format!("format: expected json or csv, found {other}")),
        };
        let percentiles = percentiles(self.one("percentiles")?.unwrap_or("50,95,99"))?;
        let (finest, from, to) = aligned(step, (from, to), keep, now / 60)?;
        let steps = step.map_or(1, |step| (to - from) / step.minutes());
        let groups = if group_by.is_empty() { 1 } else { limit as u64 };
        if steps.saturating_mul(groups) > MOST_ROWS {
            return bad(format!(
                "{steps} steps of up to {groups} groups are more than {MOST_ROWS} rows: ask for a shorter time, a longer \
                 step or a smaller limit"
            ));
        }
        Ok(Question { from, to, step, finest, group_by, filters, percentiles, sort: *sort, limit, csv })
    }
}

impl Question {
    /// True if the answer depends on who has called.
    pub(crate) fn needs_callers(&self) -> bool {
        CALLER.into_iter().any(|dimension| {
            self.group_by.contains(&dimension) || self.filters.get(dimension).is_some_and(|allowed| !allowed.is_empty())
        })
    }
}

/// The class of a status in its text: `2xx`.
pub(crate) fn class_of(text: &str) -> Option<u8> {
    let class = text.strip_suffix("xx")?.parse().ok()?;
    (1..=5).contains(&class).then_some(class)
}

/// A time in seconds since 1970.
fn time(name: &str, text: &str, now: u64) -> Result<u64, QueryError> {
    let relative = || {
        let back = text.strip_prefix('-')?;
        let unit = match back.chars().last()? {
            'm' => 60,
            'h' => 3600,
            'd' => 86400,
            _ => return None,
        };
        let count: u64 = back.get(..back.len() - 1)?.parse().ok()?;
        now.checked_sub(count.checked_mul(unit)?)
    };
    let absolute = || u64::try_from(text.parse::<Timestamp>().ok()?.as_second()).ok();
    let found = text.parse().ok().or_else(relative).or_else(absolute);
    let Some(found) = found.filter(|seconds| *seconds < 1 << 40) else {
        return bad(format!(
            "{name}: expected a time such as 2026-01-31T12:00:00Z, seconds since 1970, or a time before now such as -24h, \
             found {text}"
        ));
    };
    Ok(found)
}

fn percentiles(text: &str) -> Result<Vec<f64>, QueryError> {
    let parsed: Vec<f64> = text
        .split(',')
        .filter(|text| !text.is_empty())
        .map(|text| match text.parse() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
            _ => bad(format!("percentiles: expected numbers above 0 and up to 100, found {text}")),
        })
        .collect::<Result<_, _>>()?;
    if parsed.len() > MOST_PERCENTILES {
        return bad(format!("percentiles: expected {MOST_PERCENTILES} at most"));
    }
    Ok(parsed)
}

/// The finest level to read, and the times rounded to it: the beginning down and the end up.
fn aligned(
    step: Option<Level>,
    (from, to): (u64, u64),
    keep: &Keep,
    now: u64,
) -> Result<(Level, u64, u64), QueryError> {
    let (from, to) = (from / 60, to.div_ceil(60));
    let kept = [(Level::Minute, keep.minutes), (Level::Hour, keep.hours), (Level::Day, keep.days)];
    let is_kept = |level: Level| {
        let days = kept.iter().find(|(known, _)| *known == level).map_or(0, |(_, days)| *days);
        from >= (now.saturating_sub(days * DAY) / level.minutes()) * level.minutes()
    };
    let (name, most) = match step {
        Some(Level::Minute) => ("minute", Some(MINUTE_DAYS)),
        Some(Level::Hour) => ("hour", Some(HOUR_DAYS)),
        Some(Level::Day) | None => ("day", None),
    };
    if let Some(most) = most.filter(|most| to - from > most * DAY + 1) {
        return bad(format!("step: a time of up to {most} days is told by the {name}: ask for a longer step"));
    }
    let finest = match step {
        Some(step) if !is_kept(step) && step != Level::Day => {
            let days = kept.iter().find(|(known, _)| *known == step).map_or(0, |(_, days)| *days);
            return bad(format!(
                "step: sums by the {name} are kept for {days} days (usage.keep_{name}s): ask for a longer step"
            ));
        }
        Some(step) => step,
        None if is_kept(Level::Minute) => Level::Minute,
        None if is_kept(Level::Hour) => Level::Hour,
        None => Level::Day,
    };
    let unit = finest.minutes();
    Ok((finest, from / unit * unit, to.div_ceil(unit) * unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Keep = Keep { minutes: 30, hours: 400, days: 3650, size: u64::MAX };
    /// 2026-01-31T12:34:56Z.
    const NOW: u64 = 1_769_862_896;

    fn parse(text: &str) -> Result<Question, String> {
        let pair = |pair: &str| pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        let arguments = Arguments(text.split('&').filter_map(pair).collect());
        arguments.parse(&KEEP, NOW).map_err(|error| error.to_string())
    }

    #[test]
    fn times_are_rounded_to_what_is_read() {
        let minute = NOW / 60;
        let hour = minute / 60 * 60;
        let day = minute / DAY * DAY;
        let cases = [
            ("", Level::Minute, minute - 60, minute + 1),
            ("from=-2h&to=-1h", Level::Minute, minute - 120, minute - 59),
            ("from=-2h&step=hour", Level::Hour, hour - 120, hour + 60),
            ("from=-40d", Level::Hour, hour - 40 * DAY, hour + 60),
            ("from=-500d", Level::Day, day - 500 * DAY, day + DAY),
            ("from=2026-01-31T00:00:00Z&to=2026-01-31T02:00:00+01:00&step=minute", Level::Minute, day, day + 60),
            ("from=1769817600&to=1769817660", Level::Minute, day, day + 1),
        ];
        for (text, finest, from, to) in cases {
            let found = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((found.finest, found.from, found.to), (finest, from, to), "{text}");
        }
    }

    #[test]
    fn wrong_questions_say_what_is_wrong() {
        let cases = [
            ("form=-1h", "form: unknown argument; known are from, to, step"),
            ("from=yesterday", "from: expected a time such as"),
            ("from=-99999999999d", "from: expected a time such as"),
            ("from=-1h&to=-2h", "from: expected a time before `to`"),
            ("from=-1h&from=-2h", "from: expected once"),
            ("step=week", "step: expected minute, hour or day, found week"),
            ("step=minute&from=-8d", "step: a time of up to 7 days is told by the minute"),
            ("step=hour&from=-101d", "step: a time of up to 100 days is told by the hour"),
            ("step=minute&from=-40d&to=-39d", "step: sums by the minute are kept for 30 days (usage.keep_minutes)"),
            ("step=minute&from=-7d&limit=10000&group_by=consumer", "more than 100000 rows"),
            ("group_by=city", "group_by: city: unknown dimension; known are api, route, consumer, key, plan, status"),
            ("group_by=api,api", "group_by: api stands there twice"),
            ("status=200", "status: expected 1xx, 2xx, 3xx, 4xx or 5xx, found 200"),
            ("sort=name", "sort: name: unknown column; known are requests"),
            ("limit=0", "limit: expected 1 to 10000"),
            ("percentiles=101", "percentiles: expected numbers above 0 and up to 100, found 101"),
            ("percentiles=NaN", "percentiles: expected numbers"),
            ("format=xml", "format: expected json or csv, found xml"),
        ];
        for (text, wanted) in cases {
            let found = parse(text).expect_err(text);
            assert!(found.contains(wanted), "{text}: {found}");
        }
    }
}
