//! Log-linear histograms of latencies: 16 buckets in each power of two, so that the middle of a bucket is within 3.2 %
//! of every value in it. Two histograms are merged by adding their counts.

/// Buckets in each power of two, and values that have a bucket of their own.
const FINE: u32 = 16;
const FINE_BITS: u32 = FINE.trailing_zeros();

/// Number of buckets: of all values of 32 bits.
pub(crate) const BUCKETS: u16 = ((32 - FINE_BITS + 1) * FINE) as u16;

/// Counts by bucket, without those of empty buckets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Histogram(Vec<(u16, u64)>);

/// The bucket of a latency in microseconds.
pub(crate) fn bucket(us: u32) -> u16 {
    if us < FINE {
        return us as u16;
    }
    let power = us.ilog2();
    let within = (us >> (power - FINE_BITS)) & (FINE - 1);
    ((power - FINE_BITS + 1) * FINE + within) as u16
}

/// The middle of a bucket in microseconds.
fn middle(bucket: u16) -> f64 {
    let bucket = u32::from(bucket);
    if bucket < FINE {
        return f64::from(bucket);
    }
    let (power, within) = (bucket / FINE - 1, bucket % FINE);
    let width = f64::from(1u32 << power.min(31));
    f64::from(FINE + within) * width + (width - 1.0) / 2.0
}

/// The sum of values in microseconds, within 3.2 %, from their counts by bucket.
pub(crate) fn sum(counts: &[(u16, u64)]) -> f64 {
    counts.iter().map(|(bucket, count)| middle(*bucket) * *count as f64).sum()
}

impl Histogram {
    /// Adds to the count of a bucket.
    pub(crate) fn add(&mut self, bucket: u16, count: u64) {
        match self.0.binary_search_by_key(&bucket, |(known, _)| *known) {
            Ok(at) => {
                if let Some((_, known)) = self.0.get_mut(at) {
                    *known = known.saturating_add(count);
                }
            }
            Err(at) => self.0.insert(at, (bucket, count)),
        }
    }

    /// Adds counts by bucket.
    pub(crate) fn merge(&mut self, counts: &[(u16, u64)]) {
        if self.0.is_empty() {
            self.0.extend_from_slice(counts);
        } else {
            counts.iter().for_each(|(bucket, count)| self.add(*bucket, *count));
        }
    }

    /// The counts by bucket, in order.
    pub(crate) fn counts(&self) -> &[(u16, u64)] {
        &self.0
    }

    /// The latency in microseconds that so many percent of the values do not exceed; 0 without values.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        let total = self.0.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
        let rank = (percent / 100.0 * total as f64).ceil().max(1.0) as u64;
        let mut seen = 0u64;
        for (bucket, count) in &self.0 {
            seen = count.saturating_add(seen);
            if seen >= rank {
                return middle(*bucket);
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_bucket_is_near_its_values() {
        let mut last = 0;
        for power in 0..32 {
            for offset in 0..37u32 {
                let value = (1u32 << power).saturating_add(offset * ((1 << power) / 37));
                let found = bucket(value);
                assert!(found < BUCKETS, "{value}");
                assert!(found >= last, "{value} has a bucket before the one of a smaller value");
                last = found;
                let error = (middle(found) - f64::from(value)).abs() / f64::from(value);
                assert!(error <= 1.0 / 31.0, "{value}: {} is {error} away", middle(found));
            }
        }
        assert_eq!(bucket(u32::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let mut all = Histogram::default();
        let mut half = Histogram::default();
        for value in 1..=1000u32 {
            let to = if value % 2 == 0 { &mut all } else { &mut half };
            to.add(bucket(value * 1000), 1);
        }
        all.merge(half.counts());
        for percent in [1.0, 25.0, 50.0, 90.0, 99.0, 100.0] {
            let (found, exact) = (all.percentile(percent), percent * 10_000.0);
            assert!((found - exact).abs() <= exact / 25.0, "p{percent}: {found} for {exact}");
        }
        assert_eq!(Histogram::default().percentile(50.0), 0.0);
    }
}
