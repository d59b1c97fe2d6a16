//! The sums that a question asks for.

use std::collections::HashMap;
use std::sync::Arc;

use super::QueryError;
use super::arguments::{Question, Sort, class_of};
use crate::block::{Block, Damaged, SLOTS};
use crate::database::{Database, Level, UsageError};
use crate::table::{Cell, DIMENSIONS, Numbers};

/// Groups that are added up at most: what an answer leaves out has to be known as well, to be sorted.
const MOST_GROUPS: usize = 100_000;
/// Rows with sums that are held at most.
const MOST_SUMS: usize = 150_000;

/// Sums of a row.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sums {
    pub(crate) all: Cell,
    pub(crate) client_errors: u64,
    pub(crate) server_errors: u64,
}

impl Sums {
    fn add(&mut self, numbers: &Numbers<'_>, class: u8) {
        self.all.add(numbers);
        match class {
            4 => self.client_errors = self.client_errors.saturating_add(numbers.requests),
            5 => self.server_errors = self.server_errors.saturating_add(numbers.requests),
            _ => {}
        }
    }

    /// Adds all but the histogram, by which nobody sorts.
    fn merge(&mut self, other: &Self) {
        let Cell { requests, received, sent, latency, upstream, .. } = other.all;
        self.all.add(&Numbers { requests, received, sent, latency, upstream, counts: &[] });
        self.client_errors = self.client_errors.saturating_add(other.client_errors);
        self.server_errors = self.server_errors.saturating_add(other.server_errors);
    }

    /// The value of the column that decides about the order.
    fn weight(&self, sort: Sort) -> f64 {
        let average = |sum: u64| sum as f64 / self.all.requests.max(1) as f64;
        match sort {
            Sort::Requests => self.all.requests as f64,
            Sort::ClientErrors => self.client_errors as f64,
            Sort::ServerErrors => self.server_errors as f64,
            Sort::BytesReceived => self.all.received as f64,
            Sort::BytesSent => self.all.sent as f64,
            Sort::Latency => average(self.all.latency),
            Sort::UpstreamLatency => average(self.all.upstream),
        }
    }
}

/// A group: its values in the order of `group_by`, and its rows by their first minute.
#[derive(Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) values: Vec<Arc<str>>,
    pub(crate) rows: Vec<(u64, Sums)>,
}

/// The rows of an answer.
#[derive(Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) groups: Vec<Group>,
    /// True if there are more groups than asked for.
    pub(crate) more: bool,
}

/// Adds up what a question asks for.
pub(crate) fn gather(database: &Database, question: &Question) -> Result<Found, QueryError> {
    let mut gathering = Gathering {
        question,
        numbers: HashMap::new(),
        names: Vec::new(),
        groups: HashMap::new(),
        rows: HashMap::new(),
        sums: Vec::new(),
    };
    for (level, from, to) in pieces(question) {
        let mut too_many = false;
        database.read(level, from..to, question.needs_callers(), |start, block| {
            if !too_many {
                gathering.add(start, from..to, block)?;
                too_many = gathering.groups.len() > MOST_GROUPS || gathering.sums.len() > MOST_SUMS;
            }
            Ok(())
        })?;
        if too_many {
            let text = "too much to add up: ask for a shorter time, with more filters, or by fewer dimensions";
            return Err(QueryError::Bad(text.to_owned()));
        }
    }
    Ok(gathering.found())
}

/// The time of a question in pieces that are read from one level each: whole days and hours from their own sums where
/// rows are not finer than these.
fn pieces(question: &Question) -> Vec<(Level, u64, u64)> {
    let coarsest = question.step.unwrap_or(Level::Day);
    let mut pieces: Vec<(Level, u64, u64)> = Vec::new();
    let mut at = question.from;
    while at < question.to {
        let fits = |level: &Level| {
            at.is_multiple_of(level.minutes()) && at + level.minutes() <= question.to && *level <= coarsest
        };
        let level = [Level::Day, Level::Hour].into_iter().find(fits).unwrap_or(Level::Minute).max(question.finest);
        let next = at + level.minutes();
        match pieces.last_mut() {
            Some((last, _, end)) if *last == level => *end = next,
            _ => pieces.push((level, at, next)),
        }
        at = next;
    }
    pieces
}

struct Gathering<'a> {
    question: &'a Question,
    numbers: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
    /// Numbers of groups by the numbers of their values.
    groups: HashMap<[u32; DIMENSIONS.len() + 1], u32>,
    /// Places of sums by group and first minute.
    rows: HashMap<(u32, u64), usize>,
    sums: Vec<Sums>,
}

impl Gathering<'_> {
    fn number(&mut self, name: &Arc<str>) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len() as u32;
        self.numbers.insert(Arc::clone(name), number);
        self.names.push(Arc::clone(name));
        number
    }

    /// The groups of a block's series; `None` for those that a filter excludes.
    fn groups_of(&mut self, block: &Block<'_>) -> Vec<Option<u32>> {
        let question = self.question;
        let numbers: Vec<u32> = block.names.iter().map(|name| self.number(name)).collect();
        let allowed = question.filters.each_ref().map(|allowed| {
            (!allowed.is_empty())
                .then(|| block.names.iter().map(|name| allowed.iter().any(|a| **a == **name)).collect())
        });
        let (of_names, of_status): (&[Option<Vec<bool>>], _) = (&allowed[..DIMENSIONS.len()], &question.filters[5]);
        let classes: Vec<u8> = of_status.iter().filter_map(|class| class_of(class)).collect();
        let mut groups = Vec::with_capacity(block.series.len());
        for series in &block.series {
            let passes = of_names.iter().zip(series.values).all(|(allowed, name)| {
                allowed.as_ref().is_none_or(|allowed| allowed.get(name as usize).copied().unwrap_or(false))
            }) && (classes.is_empty() || classes.contains(&series.class));
            groups.push(passes.then(|| {
                let mut key = [u32::MAX; DIMENSIONS.len() + 1];
                for dimension in &question.group_by {
                    let value = match series.values.get(*dimension) {
                        Some(name) => numbers.get(*name as usize).copied().unwrap_or_default(),
                        None => u32::from(series.class),
                    };
                    if let Some(place) = key.get_mut(*dimension) {
                        *place = value;
                    }
                }
                let next = self.groups.len() as u32;
                *self.groups.entry(key).or_insert(next)
            }));
        }
        groups
    }

    fn add(&mut self, start: u64, range: std::ops::Range<u64>, block: &Block<'_>) -> Result<(), UsageError> {
        let groups = self.groups_of(block);
        if groups.iter().all(Option::is_none) {
            return Ok(());
        }
        let question = self.question;
        // The place of each cell's row; `None` for those that are left out.
        let mut places = Vec::with_capacity(block.cells());
        for (group, (present, series)) in groups.iter().zip(block.present.iter().zip(&block.series)) {
            for slot in (0..SLOTS).filter(|slot| present >> slot & 1 == 1) {
                let minute = start + u64::from(slot);
                let row = match question.step {
                    Some(step) => minute / step.minutes() * step.minutes(),
                    None => question.from,
                };
                let group = group.filter(|_| range.contains(&minute));
                places.push(group.map(|group| (self.place(group, row), series.class)));
            }
        }
        let sums = &mut self.sums;
        let with_latencies = !question.percentiles.is_empty();
        block.each(
            |at| places.get(at).is_some_and(Option::is_some),
            |at, numbers| {
                if let Some(Some((place, class))) = places.get(at)
                    && let Some(sums) = sums.get_mut(*place)
                {
                    let counts = if with_latencies { numbers.counts } else { &[] };
                    sums.add(&Numbers { counts, ..*numbers }, *class);
                }
            },
        )?;
        Ok(())
    }

    /// The place of a row's sums.
    fn place(&mut self, group: u32, row: u64) -> usize {
        let next = self.sums.len();
        let place = *self.rows.entry((group, row)).or_insert(next);
        if place == next {
            self.sums.push(Sums::default());
        }
        place
    }

    fn found(self) -> Found {
        let Self { question, names, groups, rows, mut sums, .. } = self;
        let mut all: Vec<Group> = Vec::with_capacity(groups.len());
        let mut keys: Vec<_> = groups.into_iter().collect();
        keys.sort_unstable_by_key(|(_, number)| *number);
        for (key, _) in keys {
            let value = |dimension: &usize| match key.get(*dimension) {
                Some(class) if *dimension == DIMENSIONS.len() => Arc::from(format!("{class}xx")),
                Some(name) => names.get(*name as usize).map_or_else(|| Arc::from(""), Arc::clone),
                None => Arc::from(""),
            };
            all.push(Group { values: question.group_by.iter().map(value).collect(), rows: Vec::new() });
        }
        for ((group, minute), place) in rows {
            if let (Some(group), Some(sums)) = (all.get_mut(group as usize), sums.get_mut(place)) {
                group.rows.push((minute, std::mem::take(sums)));
            }
        }
        all.retain(|group| !group.rows.is_empty());
        let mut weighed: Vec<(f64, Group)> = all
            .into_iter()
            .map(|mut group| {
                group.rows.sort_unstable_by_key(|(minute, _)| *minute);
                let mut whole = Sums::default();
                group.rows.iter().for_each(|(_, sums)| whole.merge(sums));
                (whole.weight(question.sort), group)
            })
            .collect();
        weighed
            .sort_by(|(one, of_one), (two, of_two)| two.total_cmp(one).then_with(|| of_one.values.cmp(&of_two.values)));
        let more = weighed.len() > question.limit;
        weighed.truncate(question.limit);
        Found { groups: weighed.into_iter().map(|(_, group)| group).collect(), more }
    }
}

impl From<Damaged> for QueryError {
    fn from(error: Damaged) -> Self {
        Self::Usage(error.into())
    }
}
