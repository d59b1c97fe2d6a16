//! Texts of the local time, for variables.

use std::io::Write;
use std::sync::OnceLock;

/// Local time texts of one second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) iso8601: [u8; 25],
    pub(crate) common: [u8; 26],
}

impl Moment {
    /// The texts for this second, made once a second and thread.
    pub(crate) fn at(unix_seconds: u64) -> Self {
        thread_local! {
            static LAST: std::cell::Cell<(u64, Moment)> =
                const { std::cell::Cell::new((u64::MAX, Moment { iso8601: [b'-'; 25], common: [b'-'; 26] })) };
        }
        let (second, cached) = LAST.get();
        if second == unix_seconds {
            return cached;
        }
        let mut made = Self { iso8601: [b'-'; 25], common: [b'-'; 26] };
        if let Ok(at) = jiff::Timestamp::from_second(unix_seconds.min(253_402_207_200) as i64) {
            let at = at.to_zoned(zone().clone());
            // The formats have a fixed length; a name that did not fit would be cut, not overrun.
            let _ = write!(&mut made.iso8601[..], "{}", at.strftime("%Y-%m-%dT%H:%M:%S%:z"));
            let _ = write!(&mut made.common[..], "{}", at.strftime("%d/%b/%Y:%H:%M:%S %z"));
        }
        LAST.set((unix_seconds, made));
        made
    }
}

fn zone() -> &'static jiff::tz::TimeZone {
    static ZONE: OnceLock<jiff::tz::TimeZone> = OnceLock::new();
    ZONE.get_or_init(jiff::tz::TimeZone::system)
}
