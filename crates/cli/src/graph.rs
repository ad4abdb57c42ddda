//! Draws a tree of checkpoints as lines of `*`, `|` and `/`, the newest first, as `git log --graph` does.
//!
//! Read downwards, a column is a line of checkpoints that waits for its next older one. Where several columns wait for the same checkpoint they meet:
//! each moves towards the nearest one on its left, one column a line, crossing what is between.
//!
//! ```text
//! *      the newest
//! | *    a fork's newest
//! |/     they meet where the fork began
//! *
//! ```

use std::collections::HashMap;

/// A line of the drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The characters, without spaces at the end.
    pub drawing: String,
    /// The checkpoint that stands on it, as its place in what was given; none for a line that only leads on.
    pub item: Option<usize>,
}

/// The order in which checkpoints are shown, as places in `parents`: children before parents, otherwise the latest first.
///
/// `parents[i]` is the place of the parent of the i-th; `ages[i]` is larger the later it was taken. With `in_lines`, a line of checkpoints is shown to
/// where it began before another is started, which makes drawings easy to follow.
pub fn order(parents: &[Option<usize>], ages: &[u64], in_lines: bool) -> Vec<usize> {
    let mut children = vec![0_usize; parents.len()];
    parents.iter().flatten().for_each(|parent| children[*parent] += 1);
    let mut ready: Vec<usize> = (0..parents.len()).filter(|item| children[*item] == 0).collect();
    ready.sort_by_key(|item| (ages[*item], *item));
    let mut ordered = Vec::with_capacity(parents.len());
    while let Some(item) = ready.pop() {
        ordered.push(item);
        let Some(parent) = parents[item] else { continue };
        children[parent] -= 1;
        if children[parent] > 0 {
            continue;
        }
        let place = if in_lines { ready.len() } else { ready.partition_point(|other| (ages[*other], *other) < (ages[parent], parent)) };
        ready.insert(place, parent);
    }
    ordered
}

/// Draws the items of `order`. A parent that is not among them ends its line.
pub fn draw(parents: &[Option<usize>], order: &[usize]) -> Vec<Line> {
    let shown: HashMap<usize, usize> = order.iter().enumerate().map(|(place, item)| (*item, place)).collect();
    // What each column waits for. None: the column is free.
    let mut columns: Vec<Option<usize>> = Vec::new();
    let mut lines = Vec::new();
    for item in order {
        let column = match columns.iter().position(|waits| *waits == Some(*item)) {
            Some(column) => {
                while let Some((to, from)) = last_two(&columns, *item) {
                    meet(&mut columns, to, from, &mut lines);
                }
                column
            }
            None => free_column(&mut columns),
        };
        columns[column] = Some(*item);
        let drawing: String = columns.iter().enumerate().map(|(place, waits)| stroke(place == column, *waits)).collect();
        lines.push(Line { drawing: drawing.trim_end().to_owned(), item: Some(*item) });
        columns[column] = parents[*item].filter(|parent| shown.contains_key(parent));
        while columns.last() == Some(&None) {
            columns.pop();
        }
    }
    lines
}

/// The two columns furthest right that wait for an item.
fn last_two(columns: &[Option<usize>], item: usize) -> Option<(usize, usize)> {
    let mut waiting = (0..columns.len()).rev().filter(|column| columns[*column] == Some(item));
    let from = waiting.next()?;
    Some((waiting.next()?, from))
}

fn free_column(columns: &mut Vec<Option<usize>>) -> usize {
    columns.iter().position(Option::is_none).unwrap_or_else(|| {
        columns.push(None);
        columns.len() - 1
    })
}

fn stroke(item: bool, waits: Option<usize>) -> &'static str {
    match (item, waits) {
        (true, _) => "* ",
        (false, Some(_)) => "| ",
        (false, None) => "  ",
    }
}

/// Leads column `from` to column `to`, left of it. The columns on the right of `from` close up.
fn meet(columns: &mut Vec<Option<usize>>, to: usize, from: usize, lines: &mut Vec<Line>) {
    let closing = columns.split_off(from + 1);
    columns.pop();
    for at in (to + 1..=from).rev() {
        // The slanted line stands between the columns `at - 1` and `at`.
        let mut drawing = String::new();
        for (place, waits) in columns.iter().enumerate() {
            drawing.push(if waits.is_some() { '|' } else { ' ' });
            drawing.push(if place + 1 == at { '/' } else { ' ' });
        }
        if at == from {
            closing.iter().for_each(|waits| drawing.push_str(if waits.is_some() { " /" } else { "  " }));
            columns.extend(closing.iter().copied());
        }
        lines.push(Line { drawing: drawing.trim_end().to_owned(), item: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checkpoints as `name parent`, the oldest first.
    fn check(history: &str, in_lines: bool, expected: &str) {
        let items: Vec<(&str, Option<&str>)> = history
            .split_ascii_whitespace()
            .map(|item| item.split_once('<').map_or((item, None), |(name, parent)| (name, Some(parent))))
            .collect();
        let parents: Vec<_> = items.iter().map(|(_, parent)| items.iter().position(|(name, _)| Some(*name) == *parent)).collect();
        let ages: Vec<_> = (0..items.len() as u64).collect();
        let lines = draw(&parents, &order(&parents, &ages, in_lines));
        let drawn: Vec<_> = lines
            .iter()
            .map(|line| format!("{} {}", line.drawing, line.item.map_or("", |item| items[item].0)).trim_end().to_owned())
            .collect();
        assert_eq!(drawn.join("\n"), expected.trim_matches('\n'), "{history}");
    }

    #[test]
    fn one_line() {
        check("", true, "");
        check("a b<a c<b", true, "* c\n* b\n* a");
    }

    #[test]
    fn a_fork_from_the_middle() {
        check(
            "a b<a c<b x<a d<c",
            true,
            "
* d
* c
* b
| * x
|/
* a",
        );
    }

    #[test]
    fn three_from_one() {
        check(
            "a b<a x<a y<a",
            true,
            "
* y
| * x
| | * b
| |/
|/
* a",
        );
    }

    #[test]
    fn a_fork_of_a_fork() {
        check(
            "a b<a x<a y<b c<b z<x",
            false,
            "
* z
| * c
| | * y
* | | x
| |/
| * b
|/
* a",
        );
    }

    #[test]
    fn lines_cross_what_is_between_and_close_up() {
        check(
            "q w a x<a y<q z<a v<w",
            false,
            "
* v
| * z
| | * y
| | | * x
| | |/
| |/|
| * | a
*   | w
    * q",
        );
    }

    #[test]
    fn several_roots() {
        check("a b<a r s<r", true, "* s\n* r\n* b\n* a");
        check(
            "a r b<a s<r",
            false,
            "
* s
| * b
* | r
  * a",
        );
    }

    fn text(lines: &[Line]) -> String {
        lines.iter().map(|line| line.drawing.clone() + "\n").collect()
    }

    /// Any tree: each item's parent is an earlier one, or none.
    fn trees() -> impl Strategy<Value = (Vec<Option<usize>>, Vec<u64>)> {
        prop::collection::vec((any::<prop::sample::Index>(), 0..8_u8, 0..50_u64), 0..40).prop_map(|items| {
            let parents = items
                .iter()
                .enumerate()
                .map(|(item, (parent, root, _))| (item > 0 && *root > 0).then(|| parent.index(item.max(1))))
                .collect();
            (parents, items.into_iter().map(|(_, _, age)| age).collect())
        })
    }

    proptest! {
        #[test]
        fn children_come_before_their_parents((parents, ages) in trees(), in_lines: bool) {
            let order = order(&parents, &ages, in_lines);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..parents.len()).collect::<Vec<_>>());
            let place = |item: usize| order.iter().position(|other| *other == item).unwrap();
            for (item, parent) in parents.iter().enumerate() {
                prop_assert!(parent.is_none_or(|parent| place(item) < place(parent)));
            }
        }

        /// Follows the strokes downwards from every checkpoint: they must lead to its parent and nowhere else.
        #[test]
        fn the_strokes_lead_to_the_parent((parents, ages) in trees(), in_lines: bool) {
            let lines = draw(&parents, &order(&parents, &ages, in_lines));
            let grid: Vec<Vec<char>> = lines.iter().map(|line| line.drawing.chars().collect()).collect();
            let at = |line: usize, column: isize| usize::try_from(column).ok().and_then(|column| grid.get(line)?.get(column)).copied().unwrap_or(' ');
            for (start, line) in lines.iter().enumerate() {
                let Some(item) = line.item else { continue };
                let mut column = line.drawing.find('*').unwrap() as isize;
                let Some(parent) = parents[item] else { continue };
                let mut reached = None;
                let mut moving = false;
                for below in start + 1..lines.len() {
                    let (here, left) = (at(below, column), at(below, column - 1));
                    if here == '*' {
                        reached = lines[below].item;
                        break;
                    }
                    // A column that began to move goes on through what it crosses; one that stands is crossed.
                    moving = left == '/' && (moving || here == ' ');
                    prop_assert!(moving || here == '|', "the line of {item} breaks off at {below}\n{}", text(&lines));
                    column -= if moving { 2 } else { 0 };
                }
                prop_assert_eq!(reached, Some(parent), "\n{}", text(&lines));
            }
        }
    }
}
