//! Records as lines of CSV, in files for an hour each, as the Pump writes them.

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use super::form::Form;

/// Names of the columns, as the first line of a file has them.
pub(super) const HEADER: &str = "\
Method,Host,Path,RawPath,ContentLength,UserAgent,Day,Month,Year,Hour,ResponseCode,APIKey,TimeStamp,APIVersion,APIName,APIID,OrgID,\
OauthID,RequestTime,RawRequest,RawResponse,IPAddress,GeoData.Country.ISOCode,GeoData.City.GeoNameID,GeoData.City.Names,\
GeoData.Location.Latitude,GeoData.Location.Longitude,GeoData.Location.TimeZone,NetworkStats.OpenConnections,\
NetworkStats.ClosedConnection,NetworkStats.BytesIn,NetworkStats.BytesOut,Latency.Total,Latency.Upstream,Latency.Gateway,Tags,Alias,\
TrackPath,ExpireAt,ApiSchema,OriginalPath,ListenPath
";

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

fn month(number: i64) -> &'static str {
    usize::try_from(number - 1).ok().and_then(|at| MONTHS.get(at)).copied().unwrap_or_default()
}

/// The name of the file of an hour in the zone of the machine.
pub(super) fn name(unix_seconds: u64) -> String {
    let time = Timestamp::from_second(unix_seconds.cast_signed()).unwrap_or_default().to_zoned(TimeZone::system());
    file(&time)
}

fn file(time: &Zoned) -> String {
    format!("{}-{}-{}-{}.csv", time.year(), month(time.month().into()), time.day(), time.hour())
}

/// A line that is being written.
pub(super) struct Line<'o> {
    out: &'o mut Vec<u8>,
    is_first: bool,
}

impl<'o> Line<'o> {
    pub(super) fn begin(out: &'o mut Vec<u8>) -> Self {
        Self { out, is_first: true }
    }

    fn column(&mut self, text: &str) {
        if !std::mem::take(&mut self.is_first) {
            self.out.push(b',');
        }
        // As Go's encoding/csv quotes.
        let quotes = text.starts_with([' ', '\t']) || text.contains([',', '"', '\r', '\n']) || text == "\\.";
        if quotes {
            self.out.push(b'"');
            self.out.extend_from_slice(text.replace('"', "\"\"").as_bytes());
            self.out.push(b'"');
        } else {
            self.out.extend_from_slice(text.as_bytes());
        }
    }
}

impl Form for Line<'_> {
    fn text(&mut self, _: &str, text: &[u8]) {
        // A line is a record: what an end of a line stands in goes on as a space.
        self.column(&String::from_utf8_lossy(text).replace(['\r', '\n'], " "));
    }

    fn int(&mut self, name: &str, number: i64) {
        match name {
            "Month" => self.column(month(number)),
            _ => self.column(&number.to_string()),
        }
    }

    fn float(&mut self, _: &str, number: f64) {
        self.column(&format!("{number:.0}"));
    }

    fn flag(&mut self, _: &str, flag: bool) {
        self.column(if flag { "true" } else { "false" });
    }

    fn time(&mut self, name: &str, unix_ms: u64) {
        let time = Timestamp::from_millisecond(unix_ms.cast_signed()).unwrap_or_default();
        let text = time.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M:%S%.f +0000 UTC").to_string();
        self.column(&text);
        // The schema of GraphQL stands behind this one, and is not recorded.
        if name == "ExpireAt" {
            self.column("");
        }
    }

    fn texts<'t>(&mut self, _: &str, count: usize, texts: &mut dyn Iterator<Item = (&'t str, &'t str)>) {
        let all: Vec<String> = texts.take(count).map(|(prefix, text)| format!("{prefix}{text}")).collect();
        self.text("", all.join(";").as_bytes());
    }

    fn nested(&mut self, _: &str, fields: u32, write: &mut dyn FnMut(&mut dyn Form)) {
        if fields == 0 {
            return self.column("");
        }
        write(self);
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;
    use jiff::tz::TimeZone;

    use super::{Form, HEADER, Line, file};

    #[test]
    fn lines_are_those_of_the_pump() {
        let mut out = Vec::new();
        let mut line = Line::begin(&mut out);
        line.text("Path", b"/a,\"b\"\n");
        line.int("Month", 11);
        line.int("Hour", 3);
        line.nested("City", 2, &mut |city| {
            city.int("GeoNameID", 0);
            city.nested("Names", 0, &mut |_| {});
        });
        line.float("Latitude", 0.0);
        line.texts("Tags", 2, &mut [("key-", "k"), ("", "b")].into_iter());
        line.flag("TrackPath", true);
        line.time("ExpireAt", 1_700_000_000_250);
        let expected = "\"/a,\"\"b\"\" \",November,3,0,,0,key-k;b,true,2023-11-14 22:13:20.25 +0000 UTC,";
        assert_eq!(String::from_utf8(out).expect("text"), expected);
        let time = date(2026, 3, 5).at(7, 59, 0, 0).to_zoned(TimeZone::UTC).expect("a time");
        assert_eq!(file(&time), "2026-March-5-7.csv");
        assert_eq!((HEADER.split(',').count(), HEADER.lines().count()), (42, 1));
    }
}
