//! Levels of syslog by the status of an answer.

use schemars::JsonSchema;
use serde::Deserialize;

/// A level of syslog, the gravest one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::kong) enum Level {
    Emerg = 0,
    Alert = 1,
    Crit = 2,
    Err = 3,
    Warning = 4,
    Notice = 5,
    Info = 6,
    Debug = 7,
}

/// Levels of answers.
#[derive(Clone, Copy, Debug)]
pub(in crate::kong) struct Levels {
    /// The least grave level that is sent.
    pub(in crate::kong) least: Level,
    /// Levels of answers below 400, below 500 and from 500.
    pub(in crate::kong) classes: [Level; 3],
}

impl Levels {
    /// The level of an answer; `None`: it is not sent.
    pub(in crate::kong) fn of(&self, status: u16) -> Option<Level> {
        let [good, client, server] = self.classes;
        let level = match status {
            500.. => server,
            400.. => client,
            _ => good,
        };
        (level <= self.least).then_some(level)
    }
}

#[cfg(test)]
mod tests {
    use super::{Level, Levels};

    #[test]
    fn answers_have_the_level_of_their_class() {
        let levels = Levels { least: Level::Notice, classes: [Level::Info, Level::Notice, Level::Err] };
        assert_eq!(
            [200, 399, 400, 499, 500].map(|status| levels.of(status)),
            [None, None, Some(Level::Notice), Some(Level::Notice), Some(Level::Err)]
        );
    }
}
