//! Answers as JSON and CSV.

use jiff::Timestamp;
use serde_json::Value;

use super::arguments::{Question, STATUS, Sort};
use super::gather::{Found, Sums};
use crate::table::DIMENSIONS;

/// An answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The media type of the text.
    pub content_type: &'static str,
    /// JSON or CSV.
    pub text: String,
}

/// A value of a row.
enum Field<'a> {
    Text(&'a str),
    Whole(u64),
    /// Milliseconds.
    Millis(f64),
}

pub(crate) fn write(question: &Question, found: &Found) -> Answer {
    let mut names: Vec<String> = question.step.iter().map(|_| "time".to_owned()).collect();
    let dimension = |at: &usize| DIMENSIONS.get(*at).copied().unwrap_or(STATUS).to_owned();
    names.extend(question.group_by.iter().map(dimension));
    names.extend(Sort::ALL.iter().map(|(name, _)| (*name).to_owned()));
    names.extend(question.percentiles.iter().map(|percent| format!("p{percent}_ms")));
    let more = found.more;
    // In a series of time, what is of one time stands together.
    let mut rows: Vec<(u64, usize)> = Vec::new();
    for (at, group) in found.groups.iter().enumerate() {
        rows.extend((0..group.rows.len()).map(|_| (0, at)));
        let start = rows.len() - group.rows.len();
        for (place, (minute, _)) in rows.iter_mut().skip(start).zip(&group.rows) {
            place.0 = *minute;
        }
    }
    rows.sort_by_key(|(minute, _)| *minute);
    let told = rows.into_iter().filter_map(|(minute, at)| {
        let group = found.groups.get(at)?;
        let row = group.rows.binary_search_by_key(&minute, |(minute, _)| *minute).ok()?;
        let (_, sums) = group.rows.get(row)?;
        Some((minute, group.values.iter().map(AsRef::as_ref).collect::<Vec<&str>>(), sums))
    });
    if question.csv { csv(question, &names, told) } else { as_json(question, &names, told, more) }
}

fn time(minute: u64) -> String {
    Timestamp::from_second((minute * 60).cast_signed()).unwrap_or_default().to_string()
}

fn fields<'a>(question: &Question, time: &'a str, values: &[&'a str], sums: &Sums) -> Vec<Field<'a>> {
    let average = |sum: u64| Field::Millis(sum as f64 / sums.all.requests.max(1) as f64 / 1000.0);
    let mut fields: Vec<Field<'a>> = question.step.iter().map(|_| Field::Text(time)).collect();
    fields.extend(values.iter().map(|value| Field::Text(value)));
    fields.extend(Sort::ALL.iter().map(|(_, column)| match column {
        Sort::Requests => Field::Whole(sums.all.requests),
        Sort::ClientErrors => Field::Whole(sums.client_errors),
        Sort::ServerErrors => Field::Whole(sums.server_errors),
        Sort::BytesReceived => Field::Whole(sums.all.received),
        Sort::BytesSent => Field::Whole(sums.all.sent),
        Sort::Latency => average(sums.all.latency),
        Sort::UpstreamLatency => average(sums.all.upstream),
    }));
    let percentile = |percent: &f64| Field::Millis(sums.all.latencies.percentile(*percent) / 1000.0);
    fields.extend(question.percentiles.iter().map(percentile));
    fields
}

fn rounded(millis: f64) -> f64 {
    (millis * 1000.0).round() / 1000.0
}

/// Rows as objects. The text is written at once: a tree of a hundred thousand rows would take many times its memory.
fn as_json<'a>(
    question: &Question,
    names: &[String],
    rows: impl Iterator<Item = (u64, Vec<&'a str>, &'a Sums)>,
    more: bool,
) -> Answer {
    let quoted = |text: &str| Value::from(text).to_string();
    let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
    let mut text =
        format!("{{\"from\":{},\"to\":{},\"rows\":[", quoted(&time(question.from)), quoted(&time(question.to)));
    for (row, (minute, values, sums)) in rows.enumerate() {
        text.push_str(if row == 0 { "{" } else { ",{" });
        let time = time(minute);
        for (at, (name, field)) in names.iter().zip(fields(question, &time, &values, sums)).enumerate() {
            text.push_str(if at == 0 { "" } else { "," });
            text.push_str(name);
            text.push(':');
            match field {
                Field::Text(value) => text.push_str(&quoted(value)),
                Field::Whole(number) => text.push_str(&number.to_string()),
                Field::Millis(millis) => text.push_str(&Value::from(rounded(millis)).to_string()),
            }
        }
        text.push('}');
    }
    text.push_str(if more { "],\"more\":true}\n" } else { "]}\n" });
    Answer { content_type: "application/json", text }
}

/// A table as RFC 4180 has it. A text that a spreadsheet would take for a formula gets an apostrophe ahead of it.
fn csv<'a>(question: &Question, names: &[String], rows: impl Iterator<Item = (u64, Vec<&'a str>, &'a Sums)>) -> Answer {
    let mut text = names.join(",") + "\r\n";
    for (minute, values, sums) in rows {
        let time = time(minute);
        for (at, field) in fields(question, &time, &values, sums).into_iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            match field {
                Field::Text(value) => push_text(&mut text, value),
                Field::Whole(number) => text.push_str(&number.to_string()),
                Field::Millis(millis) => text.push_str(&rounded(millis).to_string()),
            }
        }
        text.push_str("\r\n");
    }
    Answer { content_type: "text/csv; charset=utf-8", text }
}

fn push_text(out: &mut String, value: &str) {
    let guard = if value.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    if guard.is_empty() && !value.contains([',', '"', '\r', '\n']) {
        out.push_str(value);
    } else {
        out.push('"');
        out.push_str(guard);
        out.push_str(&value.replace('"', "\"\""));
        out.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_csv_are_quoted_where_they_must_be() {
        let cases = [
            ("jack", "jack"),
            ("", ""),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("two\r\nlines", "\"two\r\nlines\""),
            ("=1+1", "\"'=1+1\""),
        ];
        for (value, wanted) in cases {
            let mut out = String::new();
            push_text(&mut out, value);
            assert_eq!(out, wanted);
        }
    }
}
