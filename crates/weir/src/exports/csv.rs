//! Usage in CSV files, one for each hour: `usage-2026-01-31T12.csv`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use jiff::Timestamp;
use weir_usage::{Minute, Row, Sink};

/// A folder of files.
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
    gateway: String,
}

impl Files {
    pub(super) fn new(folder: &Path, gateway: &str) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("directory: cannot make {}", folder.display()))?;
        Ok(Self { folder: folder.to_owned(), gateway: gateway.to_owned() })
    }

    /// Writes the file of an hour anew, with these minutes in the place of what it has of them.
    fn write(&self, hour: &str, minutes: &[&Minute]) -> io::Result<()> {
        let path = self.folder.join(format!("usage-{hour}.csv"));
        let before = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let times: BTreeSet<String> = minutes.iter().map(|minute| time(minute.start)).collect();
        let is_kept = |line: &&str| line.split_once(',').is_some_and(|(time, _)| !times.contains(time));
        let mut lines: Vec<String> =
            before.split_inclusive("\r\n").skip(1).filter(is_kept).map(str::to_owned).collect();
        lines.extend(minutes.iter().flat_map(|minute| minute.rows.iter().map(|row| self.line(minute.start, row))));
        // Lines begin with their time.
        lines.sort();
        // Whoever reads the file sees all of it or what was there before.
        let beside = path.with_extension("csv.new");
        let mut file = File::create(&beside)?;
        file.write_all(header().as_bytes())?;
        file.write_all(lines.concat().as_bytes())?;
        file.sync_data()?;
        fs::rename(beside, path)
    }

    fn line(&self, start: u64, row: &Row) -> String {
        let mut line = time(start);
        line.push(',');
        push_text(&mut line, &self.gateway);
        for value in &row.dimensions {
            line.push(',');
            push_text(&mut line, value);
        }
        line.push_str(&format!(",{}xx", row.class));
        for number in row.sums.iter().chain(&row.percentiles) {
            line.push_str(&format!(",{number}"));
        }
        line + "\r\n"
    }
}

impl Sink for Files {
    fn put(&mut self, minutes: &[Minute]) -> Result<(), String> {
        let mut hours: BTreeMap<String, Vec<&Minute>> = BTreeMap::new();
        for minute in minutes {
            let hour = time(minute.start).chars().take("2026-01-31T12".len()).collect();
            hours.entry(hour).or_default().push(minute);
        }
        let folder = self.folder.display().to_string();
        hours
            .iter()
            .try_for_each(|(hour, minutes)| self.write(hour, minutes))
            .map_err(|error| format!("{folder}: {error}"))
    }
}

fn header() -> String {
    let names = ["time", "gateway"].into_iter().chain(Row::DIMENSIONS).chain(["status"]);
    names.chain(Row::SUMS).chain(Row::PERCENTILES).collect::<Vec<_>>().join(",") + "\r\n"
}

fn time(start: u64) -> String {
    Timestamp::from_second(start.cast_signed()).unwrap_or_default().to_string()
}

/// Appends a text as RFC 4180 has it. One that a spreadsheet would take for a formula gets an apostrophe ahead of it; line
/// ends become blanks, so that a row is a line.
fn push_text(line: &mut String, text: &str) {
    let text = text.replace(['\r', '\n'], " ");
    let text = if text.starts_with(['=', '+', '-', '@', '\t']) { format!("'{text}") } else { text };
    if text.contains([',', '"']) {
        line.push_str(&format!("\"{}\"", text.replace('"', "\"\"")));
    } else {
        line.push_str(&text);
    }
}

#[cfg(test)]
mod tests {
    use super::{Files, Minute, Row, Sink};

    fn minute(start: u64, consumer: &str, requests: u64) -> Minute {
        let dimensions = ["a", "r", consumer, "", ""].map(Into::into);
        let row = Row { dimensions, class: 2, sums: [requests, 1, 2, 3, 4], percentiles: [5, 6, 7] };
        Minute { start, rows: vec![row] }
    }

    #[test]
    fn minutes_are_replaced_in_the_file_of_their_hour() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut files = Files::new(&folder.path().join("deep/er"), "g1").expect("a folder");
        let read = |hour: &str| {
            let path = folder.path().join(format!("deep/er/usage-2026-01-31T{hour}.csv"));
            std::fs::read_to_string(path).expect("a file")
        };
        const NOON: u64 = 1_769_860_800;
        files
            .put(&[minute(NOON, "jack", 1), minute(NOON + 60, "=1,\"2\"\n", 2), minute(NOON - 60, "x", 3)])
            .expect("put");
        let header = "time,gateway,api,route,consumer,key,plan,status,requests,bytes_received,bytes_sent,latency_us,upstream_us,p50_us,p95_us,p99_us\r\n";
        let first = "2026-01-31T12:00:00Z,g1,a,r,jack,,,2xx,1,1,2,3,4,5,6,7\r\n";
        let second = "2026-01-31T12:01:00Z,g1,a,r,\"'=1,\"\"2\"\" \",,,2xx,2,1,2,3,4,5,6,7\r\n";
        assert_eq!(read("12"), format!("{header}{first}{second}"));
        assert!(read("11").contains("2026-01-31T11:59:00Z,g1,a,r,x,"));
        files.put(&[minute(NOON, "jack", 9)]).expect("put");
        let changed = first.replace("2xx,1,", "2xx,9,");
        assert_eq!(read("12"), format!("{header}{changed}{second}"));
        assert_eq!(
            std::fs::read_dir(folder.path().join("deep/er")).expect("the folder").count(),
            2,
            "nothing is left over"
        );
    }
}
