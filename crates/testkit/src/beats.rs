//! What `guests/src/beat.c` writes down in a guest: something that was done again and again, when, and how long it took.

const HEAD: usize = 64;
const RECORD: usize = 12;

/// One time of many.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Beat {
    /// When it began: the guest's monotonic clock, ns.
    pub at: f64,
    /// What it took, ns; none if it had no end.
    pub took: Option<f64>,
}

impl Beat {
    /// When it ended.
    pub fn end(&self) -> f64 {
        self.at + self.took.unwrap_or_default()
    }
}

/// Its file.
#[derive(Debug, Clone, PartialEq)]
pub struct Noted {
    /// Each time, in order.
    pub all: Vec<Beat>,
    /// Replies that came twice.
    pub doubled: u64,
    /// The guest's monotonic clock, ns, its power management timer, and its wall clock, ns: when it began, and when it ended.
    pub looks: [[i64; 3]; 2],
}

impl Noted {
    /// Reads it.
    ///
    /// # Panics
    /// It is not whole.
    #[track_caller]
    pub fn parse(bytes: &[u8]) -> Self {
        let number = |at: usize| i64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        assert!(bytes.len() >= HEAD, "{} bytes from the guest", bytes.len());
        let [doubled, count] = [48, 56].map(number);
        let records = bytes[HEAD..].chunks_exact(RECORD).map(|record| {
            let took = i32::from_le_bytes(record[8..].try_into().expect("four bytes"));
            let at = i64::from_le_bytes(record[..8].try_into().expect("eight bytes"));
            Beat { at: at as f64, took: (took >= 0).then_some(f64::from(took)) }
        });
        let all: Vec<_> = records.collect();
        assert_eq!(all.len() as i64, count, "the guest's file is cut off");
        Self { all, doubled: doubled as u64, looks: [[0, 8, 16].map(number), [24, 32, 40].map(number)] }
    }
}
