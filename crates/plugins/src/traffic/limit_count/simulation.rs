//! A hundred gateways with leases of one key: a simulation, in which time, delays and losses come from a seed.
//!
//! The gateways run the code of [`Lease`]; Redis is a model of the scripts in `leases.rs`, which black-box tests run in
//! a real one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write;

use super::counter::{Quota, WindowKind};
use super::lease::{Ask, Grant, Lease, Return};

const GATEWAYS: usize = 100;
/// Microseconds.
const SWEEP: u64 = 250_000;
const TIMEOUT: u64 = 1_000_000;

/// Conditions of a run. Times are microseconds.
#[derive(Debug, Clone, Copy)]
struct Conditions {
    quota: Quota,
    /// Requests a second at all gateways together, of which each gateway has its own share.
    rate: u64,
    /// Ends with no more requests, and then with no more events.
    until: u64,
    /// Shortest and longest way to Redis, and from it.
    delay: (u64, u64),
    /// Messages of a thousand that are lost.
    lost: u64,
    /// Redis gets nothing from here to there.
    away: (u64, u64),
}

const CALM: Conditions = Conditions {
    quota: Quota { count: 10_000, window: 10_000, kind: WindowKind::Fixed },
    rate: 2_000,
    until: 60_000_000,
    delay: (100, 300),
    lost: 0,
    away: (0, 0),
};

/// The scripts' part.
#[derive(Debug, Default)]
struct Model {
    last: u64,
    inside: u64,
    before: u64,
    holders: u64,
    others: u64,
    windows: Vec<u64>,
}

impl Model {
    fn take(&mut self, now: u64, ask: &Ask, quota: &Quota) -> Grant {
        let slides = quota.kind == WindowKind::Sliding;
        if now >= self.last {
            if !slides || now - self.last >= quota.window {
                (self.last, self.inside, self.before) = (now + quota.window, 0, 0);
            } else {
                (self.last, self.before, self.inside) = (self.last + quota.window, self.inside, 0);
            }
            (self.holders, self.others) = (0, self.holders);
            self.windows.push(self.last);
        }
        self.holders += u64::from(ask.window != self.last);
        let weighted = (self.before * (self.last - now).min(quota.window)).div_ceil(quota.window);
        let used = self.inside + if slides { weighted } else { 0 };
        let free = quota.count.saturating_sub(used);
        let share = free / (4 * self.holders.max(self.others).max(1));
        let shares = free.min(ask.need.max(ask.want.min(share)));
        self.inside += shares;
        Grant { shares, used: used + shares, left: self.last - now, window: self.last }
    }

    fn give(&mut self, back: &Return, quota: &Quota) {
        if self.last == back.window {
            self.inside = self.inside.saturating_sub(back.shares);
        } else if self.last == back.window + quota.window {
            self.before = self.before.saturating_sub(back.shares);
        }
    }
}

/// A gateway, whose clock shows any time and goes a little fast or slow.
#[derive(Debug)]
struct Node {
    lease: Lease,
    waiting: u64,
    offset: u64,
    /// Millionths by which its clock is too fast, and 1000 more.
    pace: u64,
    asked: u64,
    /// Requests a second.
    rate: u64,
}

impl Node {
    fn now(&self, time: u64) -> u64 {
        self.offset + (time + time * self.pace / 1_000_000 - time / 1_000) / 1000
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Request,
    Sweep,
    /// A question is in Redis; its number distinguishes an answer in time from a late one.
    Asked([u64; 5]),
    Answered([u64; 5], [u64; 4]),
    TimedOut(u64),
    Given(u64, u64),
}

#[derive(Debug)]
struct Run {
    conditions: Conditions,
    random: fastrand::Rng,
    model: Model,
    nodes: Vec<Node>,
    events: BinaryHeap<Reverse<(u64, u64, usize, Event)>>,
    number: u64,
    /// Times of requests that passed, in milliseconds of Redis' clock.
    passed: Vec<u64>,
    refused: u64,
    failed: u64,
    calls: u64,
    largest: u64,
    /// Time, requests that passed so far in all, shares that lie at gateways.
    plot: Vec<(u64, u64, u64)>,
}

/// Redis' clock is an hour off, too.
const REDIS_OFFSET: u64 = 3_600_000;

impl Run {
    fn new(conditions: Conditions, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        // The busiest gateway has some forty times the requests of the idlest.
        let weights: Vec<u64> = (0..GATEWAYS).map(|_| random.u64(1..40)).collect();
        let sum: u64 = weights.iter().sum();
        let nodes = weights.iter().map(|weight| Node {
            lease: Lease::default(),
            waiting: 0,
            offset: random.u64(1..1_000_000_000),
            pace: random.u64(500..1500),
            asked: 0,
            rate: (conditions.rate * weight / sum).max(1),
        });
        let nodes = nodes.collect();
        let mut run = Self {
            conditions,
            random,
            model: Model::default(),
            nodes,
            events: BinaryHeap::new(),
            number: 0,
            passed: Vec::new(),
            refused: 0,
            failed: 0,
            calls: 0,
            largest: 0,
            plot: Vec::new(),
        };
        for node in 0..GATEWAYS {
            let first = run.random.u64(0..1_000_000);
            run.at(first, node, Event::Request);
            run.at(first / 4, node, Event::Sweep);
        }
        run
    }

    fn at(&mut self, time: u64, node: usize, event: Event) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, node, event)));
    }

    /// A message's way, which may lead nowhere.
    fn send(&mut self, time: u64, node: usize, event: Event) {
        let (least, most) = self.conditions.delay;
        let arrives = time + self.random.u64(least..=most);
        let is_lost = self.random.u64(0..1000) < self.conditions.lost;
        let (from, to) = self.conditions.away;
        if !is_lost && !(from..to).contains(&arrives) {
            self.at(arrives, node, event);
        }
    }

    fn all(mut self) -> Self {
        let mut plotted = 0;
        while let Some(Reverse((time, _, node, event))) = self.events.pop() {
            if time >= plotted {
                let held = self.nodes.iter().map(|node| node.lease.held()).sum();
                self.plot.push((time, self.passed.len() as u64, held));
                plotted = time + 50_000;
            }
            self.happen(time, node, event);
        }
        self
    }

    fn happen(&mut self, time: u64, at: usize, event: Event) {
        let (redis, quota) = (REDIS_OFFSET + time / 1000, self.conditions.quota);
        let now = self.nodes[at].now(time);
        match event {
            Event::Request => {
                self.nodes[at].waiting += 1;
                self.decide(time, at);
                if time < self.conditions.until {
                    let gap = 2_000_000 / self.nodes[at].rate;
                    let next = time + 1 + self.random.u64(0..gap);
                    self.at(next, at, Event::Request);
                }
            }
            Event::Sweep => {
                let lease = &mut self.nodes[at].lease;
                let back = if lease.is_over(now) { lease.close(&quota) } else { lease.rest_idle(now) };
                self.give(time, at, back);
                if time < self.conditions.until + 5_000_000 {
                    self.at(time + SWEEP, at, Event::Sweep);
                }
            }
            Event::Asked(question) => {
                let [_, _, need, want, window] = question;
                let grant = self.model.take(redis, &Ask { need, want, window }, &quota);
                self.largest = self.largest.max(grant.shares);
                let answer = [grant.shares, grant.used, grant.left, grant.window];
                self.send(time, at, Event::Answered(question, answer));
            }
            Event::Answered([number, sent, need, want, window], [shares, used, left, of]) => {
                if self.nodes[at].asked != number || !self.nodes[at].lease.is_asking {
                    return;
                }
                let (ask, grant) = (Ask { need, want, window }, Grant { shares, used, left, window: of });
                let back = self.nodes[at].lease.receive((sent, now), &ask, &grant, &quota);
                self.give(time, at, back);
                self.decide(time, at);
            }
            Event::TimedOut(number) => {
                let node = &mut self.nodes[at];
                if node.asked == number && node.lease.is_asking {
                    node.lease.fail();
                    self.failed += std::mem::take(&mut node.waiting);
                }
            }
            Event::Given(shares, window) => self.model.give(&Return { shares, window }, &quota),
        }
    }

    fn give(&mut self, time: u64, at: usize, back: Option<Return>) {
        if let Some(Return { shares, window }) = back {
            self.send(time, at, Event::Given(shares, window));
        }
    }

    /// Lets those that wait pass or not, and asks where that is needed.
    fn decide(&mut self, time: u64, at: usize) {
        let now = self.nodes[at].now(time);
        let node = &mut self.nodes[at];
        while node.waiting > 0 {
            let Some(taken) = node.lease.take(now) else { break };
            node.waiting -= 1;
            if taken.passed {
                self.passed.push(REDIS_OFFSET + time / 1000);
            } else {
                self.refused += 1;
            }
        }
        if node.lease.is_asking || node.waiting == 0 && !node.lease.is_low(now) {
            return;
        }
        let Ask { need, want, window } = node.lease.ask(now, node.waiting);
        self.number += 1;
        node.asked = self.number;
        let question = [self.number, now, need, want, window];
        self.calls += 1;
        self.send(time, at, Event::Asked(question));
        self.at(time + TIMEOUT, at, Event::TimedOut(question[0]));
    }

    /// Requests that passed in each window.
    fn by_window(&self) -> Vec<u64> {
        let window = self.conditions.quota.window;
        let within = |end: &u64| self.passed.iter().filter(|time| (end - window..*end).contains(time)).count() as u64;
        self.model.windows.iter().map(within).collect()
    }

    /// The rule of the limit, for each request that passed.
    fn assert_limit_is_kept(&self) {
        let Conditions { quota, .. } = self.conditions;
        let counts = self.by_window();
        assert_eq!(counts.iter().sum::<u64>(), self.passed.len() as u64, "all lie in a window: {:?}", self.conditions);
        match quota.kind {
            WindowKind::Fixed => assert!(counts.iter().all(|count| *count <= quota.count), "{counts:?}"),
            WindowKind::Sliding => {
                let mut so_far = vec![0; counts.len()];
                for time in &self.passed {
                    let at = self.model.windows.iter().position(|end| time < end).expect("a window");
                    let end = self.model.windows[at];
                    let follows = at > 0 && self.model.windows[at - 1] + quota.window == end;
                    let before = if follows { so_far[at - 1] } else { 0 };
                    so_far[at] += 1;
                    let used = so_far[at] + before * (end - time) / quota.window;
                    assert!(used <= quota.count, "{used} at {time} in the window until {end}: {:?}", self.conditions);
                }
            }
        }
    }
}

#[test]
fn the_limit_is_never_exceeded() {
    let sliding = Quota { kind: WindowKind::Sliding, ..CALM.quota };
    let small = Quota { count: 150, window: 1000, ..CALM.quota };
    let far = (4_000, 6_000);
    let cases = [
        CALM,
        Conditions { delay: far, ..CALM },
        Conditions { delay: (10, 400_000), lost: 50, ..CALM },
        Conditions { away: (13_000_000, 16_000_000), ..CALM },
        Conditions { quota: small, rate: 3_000, ..CALM },
        Conditions { quota: small, rate: 3_000, delay: (10, 400_000), lost: 50, ..CALM },
        Conditions { quota: sliding, ..CALM },
        Conditions { quota: sliding, delay: far, lost: 50, ..CALM },
        Conditions { quota: sliding, delay: (10, 400_000), away: (13_000_000, 16_000_000), ..CALM },
        Conditions { quota: Quota { kind: WindowKind::Sliding, ..small }, rate: 3_000, delay: (10, 400_000), ..CALM },
    ];
    for (seed, case) in cases.into_iter().enumerate() {
        let run = Run::new(case, seed as u64).all();
        assert!(run.passed.len() > 1000 && run.refused > 0, "{case:?}");
        run.assert_limit_is_kept();
    }
}

#[test]
fn few_requests_are_lost_and_few_ask() {
    for (delay, least) in [((100, 300), 9_900), ((4_000, 6_000), 9_900)] {
        let run = Run::new(Conditions { delay, ..CALM }, 1).all();
        let counts = run.by_window();
        // The last window may end with the requests.
        let whole = &counts[..counts.len() - 1];
        assert!(whole.len() >= 5 && whole.iter().all(|count| *count >= least), "{counts:?}");
        assert!(
            whole.iter().all(|count| count + GATEWAYS as u64 * run.largest >= CALM.quota.count),
            "the stated bound"
        );
        assert_eq!(run.failed, 0);
        assert!(run.calls * 2 < run.passed.len() as u64 + run.refused, "{} questions", run.calls);
    }
    // At ten times the rate, a question is asked for many requests.
    let quota = Quota { count: 1_000_000, ..CALM.quota };
    let run = Run::new(Conditions { quota, rate: 20_000, until: 20_000_000, ..CALM }, 2).all();
    assert!(run.calls * 10 < run.passed.len() as u64, "{} questions for {}", run.calls, run.passed.len());
    assert_eq!((run.refused, run.failed), (0, 0));
}

#[test]
fn single_requests_are_counted_exactly() {
    let quota = Quota { count: 40, window: 100_000, kind: WindowKind::Fixed };
    let run = Run::new(Conditions { quota, rate: 100, ..CALM }, 3).all();
    assert_eq!(run.passed.len(), 40);
}

/// The plot `docs/leases.svg`; `UPDATE_DOCS=1` writes it anew.
#[test]
fn the_plot_is_generated() {
    let run = Run::new(Conditions { until: 10_900_000, ..CALM }, 1).all();
    let text = plot(&run);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/leases.svg");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &text).expect("write the plot");
    }
    assert_eq!(
        std::fs::read_to_string(path).unwrap_or_default(),
        text,
        "docs/leases.svg is out of date: UPDATE_DOCS=1"
    );
}

/// Requests that passed in the first window, and shares that lie at gateways.
fn plot(run: &Run) -> String {
    let (first, span) = (run.model.windows[0] - run.conditions.quota.window - REDIS_OFFSET, 10_000);
    let points = |value: &dyn Fn(&(u64, u64, u64)) -> u64| {
        let mut line = String::new();
        for point in &run.plot {
            let at = (point.0 / 1000).saturating_sub(first);
            if at < span {
                let _ = write!(line, "{},{} ", 60 + at * 560 / span, 270 - value(point) * 220 / 10_000);
            }
        }
        line.trim_end().to_owned()
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 680 320\" font-family=\"sans-serif\" font-size=\"12\">\n\
<rect width=\"680\" height=\"320\" fill=\"#fff\"/>\n\
<text x=\"60\" y=\"24\">100 gateways, 10,000 requests in 10 s, of which 20,000 come</text>\n\
<path d=\"M60 50V270H620\" fill=\"none\" stroke=\"#444\"/>\n\
<path d=\"M60 50H620\" stroke=\"#c33\" stroke-dasharray=\"4 3\"/><text x=\"540\" y=\"44\" fill=\"#c33\">the limit</text>\n\
<polyline fill=\"none\" stroke=\"#26c\" stroke-width=\"2\" points=\"{}\"/>\n\
<polyline fill=\"none\" stroke=\"#292\" stroke-width=\"2\" points=\"{}\"/>\n\
<text x=\"400\" y=\"120\" fill=\"#26c\">requests that passed</text>\n\
<text x=\"400\" y=\"240\" fill=\"#292\">shares that lie at gateways</text>\n\
<text x=\"10\" y=\"54\">10,000</text><text x=\"46\" y=\"274\">0</text>\n\
<text x=\"60\" y=\"290\">0 s</text><text x=\"606\" y=\"290\">10 s</text>\n\
<text x=\"60\" y=\"310\">passed in the window: {}; largest lease: {}</text>\n</svg>\n",
        points(&|point| point.1),
        points(&|point| point.2),
        run.by_window()[0],
        run.largest,
    )
}
