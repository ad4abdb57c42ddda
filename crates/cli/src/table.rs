//! Tables without borders that fit the terminal.

use crate::{
    out::{Paint, Style},
    text::{fit, width},
};

const GAP: usize = 2;
/// A column that is made narrower to fit keeps at least this much.
const NARROWEST: usize = 8;

/// One piece of a row.
#[derive(Debug, Clone)]
pub struct Cell {
    text: String,
    paint: Paint,
}

impl Cell {
    /// A text in a colour.
    pub fn new(paint: Paint, text: impl Into<String>) -> Self {
        Self { text: text.into(), paint }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(Paint::Plain, text)
    }
}

/// How a column is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// Words.
    Left,
    /// Figures.
    Right,
    /// Words that may be cut off when the terminal is too narrow.
    Elastic,
}

/// Rows under a header.
#[derive(Debug)]
pub struct Table {
    header: Option<Vec<String>>,
    columns: Vec<Set>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(columns: &[(&str, Set)]) -> Self {
        Self {
            header: Some(columns.iter().map(|column| column.0.to_owned()).collect()),
            columns: columns.iter().map(|column| column.1).collect(),
            rows: vec![],
        }
    }

    /// A table without a header.
    pub fn bare(columns: &[Set]) -> Self {
        Self { header: None, columns: columns.to_vec(), rows: vec![] }
    }

    /// Leaves the header out.
    pub fn without_header(mut self) -> Self {
        self.header = None;
        self
    }

    /// Adds a row; cells that are missing at its end are empty.
    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert!(cells.len() <= self.columns.len());
        self.rows.push(cells);
    }

    /// The table as text, a line a row.
    pub fn render(&self, style: &Style) -> String {
        let header: Option<Vec<Cell>> = self.header.as_ref().map(|names| names.iter().map(|name| Cell::new(Paint::Dim, name)).collect());
        let lines: Vec<&Vec<Cell>> = header.iter().chain(&self.rows).collect();
        let mut widths: Vec<usize> = (0..self.columns.len())
            .map(|column| lines.iter().filter_map(|cells| cells.get(column)).map(|cell| width(&cell.text)).max().unwrap_or(0))
            .collect();
        self.narrow(&mut widths, style.width);
        lines.iter().map(|cells| self.line(cells, &widths, style)).collect()
    }

    /// Takes from the elastic columns, the last first, what the terminal is too narrow for.
    fn narrow(&self, widths: &mut [usize], terminal: Option<usize>) {
        let Some(terminal) = terminal else { return };
        let used = widths.iter().filter(|width| **width > 0).map(|width| width + GAP).sum::<usize>().saturating_sub(GAP);
        let mut excess = used.saturating_sub(terminal);
        for (column, width) in widths.iter_mut().enumerate().rev() {
            if self.columns[column] == Set::Elastic {
                let taken = excess.min(width.saturating_sub(NARROWEST));
                *width -= taken;
                excess -= taken;
            }
        }
    }

    fn line(&self, cells: &[Cell], widths: &[usize], style: &Style) -> String {
        let mut line = String::new();
        let mut owed = 0;
        for (column, cell) in cells.iter().enumerate().filter(|(column, _)| widths[*column] > 0) {
            let text = fit(&cell.text, widths[column]);
            let room = widths[column] - width(&text);
            let before = if self.columns[column] == Set::Right { room } else { 0 };
            if !text.is_empty() {
                line.extend(std::iter::repeat_n(' ', owed + before));
                line.push_str(&style.paint(cell.paint, &text));
                owed = room - before + GAP;
            } else {
                owed += widths[column] + GAP;
            }
        }
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[("NAME", Set::Left), ("SIZE", Set::Right), ("EMPTY", Set::Left), ("WORDS", Set::Elastic)]);
        table.row(vec!["a".into(), "1".into(), "".into(), "something long to be cut".into()]);
        table.row(vec!["größer".into(), "1000".into(), Cell::new(Paint::Good, "x"), "漢字".into()]);
        table.row(vec!["b".into()]);
        table
    }

    #[test]
    fn columns_stand_below_each_other() {
        let expected = "\
NAME    SIZE  EMPTY  WORDS
a          1         something long to be cut
größer  1000  x      漢字
b
";
        assert_eq!(table().render(&Style::default()), expected);
    }

    #[test]
    fn it_fits_the_terminal() {
        let expected = "\
a          1     somethi…
größer  1000  x  漢字
b
";
        assert_eq!(table().without_header().render(&Style { color: false, width: Some(20) }), expected);
    }

    #[test]
    fn colours_take_no_room() {
        let text = table().render(&Style { color: true, width: None });
        assert!(text.contains("  \x1b[32mx\x1b[0m      漢字\n"), "{text:?}");
    }
}
