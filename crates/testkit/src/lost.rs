//! Time that guests lose to checkpoints: how long the host let a guest's processor run, less how far its clock came.

/// A guest that stands still.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// How long its processor ran so far, ns.
    pub ran: f64,
    /// Its virtual time, ns.
    pub time: f64,
}

/// What was lost from each look to the next.
#[derive(Debug)]
pub struct Lost {
    /// In us: what is positive, the clock ran without the processor.
    pub lost: Vec<f64>,
    /// Virtual time in all, s.
    pub passed: f64,
}

impl Lost {
    /// What was lost between these looks.
    ///
    /// # Panics
    /// If there is none.
    pub fn new(looks: &[Look]) -> Self {
        let lost = looks.windows(2).map(|pair| (pair[1].time - pair[0].time - pair[1].ran + pair[0].ran) / 1e3).collect();
        Self { lost, passed: (looks[looks.len() - 1].time - looks[0].time) / 1e9 }
    }

    fn sum(&self) -> f64 {
        self.lost.iter().sum()
    }

    /// What is lost in a second without a checkpoint, if each checkpoint costs as much here as there.
    pub fn rate(&self, often: &Self) -> f64 {
        let (seldom, many) = (self.lost.len() as f64, often.lost.len() as f64);
        (self.sum() * many - often.sum() * seldom) / (self.passed * many - often.passed * seldom)
    }

    /// What is lost at each, apart from that.
    pub fn each(&self, anyhow: f64) -> f64 {
        (self.sum() - anyhow * self.passed) / self.lost.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at a guest that runs for so long between two of them, and loses so much at each and so much in a second.
    fn looks(count: u32, between_s: f64, at_each_us: f64, a_second_us: f64) -> Vec<Look> {
        let lost = |number: f64| number * (at_each_us * 1e3 + between_s * a_second_us * 1e3);
        let time = |number: f64| 5e9 + number * between_s * 1e9;
        (0..=count).map(|number| Look { ran: 3e9 + time(number.into()) - lost(number.into()), time: time(number.into()) }).collect()
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-3
    }

    #[test]
    fn the_clock_of_a_guest_that_loses_nothing_is_its_processors() {
        let lost = Lost::new(&looks(50, 0.2, 0.0, 0.0));
        assert!(lost.lost.iter().all(|lost| near(*lost, 0.0)));
        assert!(near(lost.passed, 10.0) && near(lost.each(0.0), 0.0));
    }

    #[test]
    fn what_checkpoints_cost_is_told_from_what_is_lost_anyhow() {
        for (at_each, a_second) in [(20.0, 0.0), (-35.0, 7.0), (0.0, 400.0), (15.0, -3.0)] {
            let often = Lost::new(&looks(500, 0.2, at_each, a_second));
            let seldom = Lost::new(&looks(25, 4.0, at_each, a_second));
            let anyhow = seldom.rate(&often);
            assert!(near(anyhow, a_second), "{anyhow} and not {a_second}");
            assert!(near(often.each(anyhow), at_each), "{} and not {at_each}", often.each(anyhow));
        }
    }
}
