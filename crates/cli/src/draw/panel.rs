//! One panel of a picture: axes, bars that stand on each other or lines, and the legend.

use super::{Area, Drawn, INK, WIDTH, font};
use crate::text;
use fermata_api::values;
use plotters::{
    chart::{ChartBuilder, ChartContext},
    coord::{cartesian::Cartesian2d, types::RangedCoordf64},
    element::{Circle, PathElement, Rectangle},
    prelude::DrawingBackend,
    style::{Color, RGBColor},
};
use std::borrow::Cow;

const TITLE: u32 = 30;
const LEGEND: u32 = 290;
const LEGEND_LINE: i32 = 21;
/// More series than there are colours to tell apart: the smallest become one.
const SERIES_MAX: usize = 9;
/// Bars are no wider than if there were so many.
const SLOTS_MIN: usize = 8;
/// With more bars than these there is no gap between two.
const GAPS_MAX: usize = 90;
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
const FAINT: RGBColor = RGBColor(0x66, 0x66, 0x66);

/// Okabe and Ito's colours, which the colour-blind tell apart, and two greys.
const LIGHT_GREY: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);
const GREY: RGBColor = RGBColor(0xb0, 0xb0, 0xb0);
const BLACK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const ORANGE: RGBColor = RGBColor(0xe6, 0x9f, 0x00);
const SKY: RGBColor = RGBColor(0x56, 0xb4, 0xe9);
const GREEN: RGBColor = RGBColor(0x00, 0x9e, 0x73);
const YELLOW: RGBColor = RGBColor(0xf0, 0xe4, 0x42);
const BLUE: RGBColor = RGBColor(0x00, 0x72, 0xb2);
const VERMILION: RGBColor = RGBColor(0xd5, 0x5e, 0x00);
const PURPLE: RGBColor = RGBColor(0xcc, 0x79, 0xa7);
const IN_TURN: [RGBColor; SERIES_MAX] = [BLUE, ORANGE, GREEN, SKY, VERMILION, YELLOW, PURPLE, GREY, BLACK];

type Chart<'a, B> = ChartContext<'a, B, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// What is drawn of one series.
struct Drawing<'a> {
    label: String,
    color: RGBColor,
    values: Cow<'a, [Option<f64>]>,
}

/// A panel that is about to be drawn.
pub(super) struct Panel<'a> {
    panel: &'a values::Panel,
    series: Vec<Drawing<'a>>,
    /// Virtual time of each checkpoint, ns.
    instants: &'a [u64],
    scale: u32,
}

impl<'a> Panel<'a> {
    pub fn new(panel: &'a values::Panel, instants: &'a [u64], scale: u32) -> Self {
        Self { panel, series: drawings(panel), instants, scale }
    }

    pub fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn<()>
    where
        B::ErrorType: 'static,
    {
        let scale = self.scale as i32;
        let (title, rest) = area.split_vertically(TITLE * self.scale);
        title.draw_text(&self.panel.title, &font(16, self.scale), (16 * scale, 8 * scale))?;
        if self.series.is_empty() {
            rest.draw_text("These checkpoints have nothing of it.", &font(13, self.scale).color(&FAINT), (16 * scale, 8 * scale))?;
            return Ok(());
        }
        let (plot, legend) = rest.split_horizontally((WIDTH - LEGEND) * self.scale);
        let mut chart = self.axes(&plot)?;
        if self.panel.stacked {
            self.bars(&mut chart)?;
        } else {
            self.lines(&mut chart)?;
        }
        self.legend(&legend)
    }

    fn axes<'b, B: DrawingBackend>(&self, plot: &'b Area<B>) -> Drawn<Chart<'b, B>>
    where
        B::ErrorType: 'static,
    {
        let scale = self.scale;
        let slots = self.instants.len().max(SLOTS_MIN) as f64;
        let mut chart = ChartBuilder::on(plot)
            .margin_top(6 * scale)
            .margin_right(12 * scale)
            .margin_left(6 * scale)
            .x_label_area_size(44 * scale)
            .y_label_area_size(74 * scale)
            .build_cartesian_2d(-0.5..slots - 0.5, 0.0..self.top())?;
        let instant = |place: &f64| {
            let at = (place.fract() == 0.0 && *place >= 0.0).then(|| self.instants.get(*place as usize)).flatten();
            at.map_or_else(String::new, |ns| text::instant(*ns))
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID.stroke_width(scale))
            .light_line_style(GRID.mix(0.0))
            .axis_style(INK.stroke_width(scale))
            .set_all_tick_mark_size(4 * scale)
            .label_style(font(13, scale))
            .axis_desc_style(font(13, scale))
            .x_labels(8)
            .y_labels(6)
            .x_label_formatter(&instant)
            .y_label_formatter(&|value| number(*value))
            .x_desc("virtual time of the checkpoint")
            .y_desc(&self.panel.unit)
            .draw()?;
        Ok(chart)
    }

    /// Where the axis ends: a little above the highest, except for shares of a whole.
    fn top(&self) -> f64 {
        if self.panel.unit == "%" {
            return 100.0;
        }
        let at = |place| self.series.iter().filter_map(move |series| series.values.get(place).copied().flatten());
        let heights = (0..self.instants.len()).map(|place| match self.panel.stacked {
            true => at(place).sum::<f64>(),
            false => at(place).fold(0.0, f64::max),
        });
        let highest = heights.fold(0.0, f64::max);
        if highest > 0.0 { highest * 1.05 } else { 1.0 }
    }

    fn bars<B: DrawingBackend>(&self, chart: &mut Chart<'_, B>) -> Drawn<()>
    where
        B::ErrorType: 'static,
    {
        let half = if self.instants.len() > GAPS_MAX { 0.5 } else { 0.4 };
        let mut bases = vec![0.0; self.instants.len()];
        for series in &self.series {
            let bars = series.values.iter().zip(&mut bases).enumerate().filter_map(|(place, (value, base))| {
                let bottom = *base;
                *base += value.filter(|value| *value > 0.0)?;
                let place = place as f64;
                Some(Rectangle::new([(place - half, bottom), (place + half, *base)], series.color.filled()))
            });
            chart.draw_series(bars.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn lines<B: DrawingBackend>(&self, chart: &mut Chart<'_, B>) -> Drawn<()>
    where
        B::ErrorType: 'static,
    {
        for (place, series) in self.series.iter().enumerate() {
            // Lines that lie on each other are seen by the rims of those below.
            let rim = (self.series.len() - 1 - place) as u32;
            let points: Vec<_> = series.values.iter().enumerate().map(|(place, value)| Some((place as f64, (*value)?))).collect();
            // A line ends where a checkpoint does not tell, and begins anew behind it.
            let pieces = points.split(Option::is_none).map(|piece| piece.iter().copied().flatten().collect::<Vec<_>>());
            chart.draw_series(pieces.map(|piece| PathElement::new(piece, series.color.stroke_width((2 + rim) * self.scale))))?;
            if points.len() <= GAPS_MAX {
                chart
                    .draw_series(points.iter().flatten().map(|point| Circle::new(*point, (3 + rim) * self.scale, series.color.filled())))?;
            }
        }
        Ok(())
    }

    /// The series in the order in which they stand on each other, with their averages.
    fn legend<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn<()>
    where
        B::ErrorType: 'static,
    {
        let scale = self.scale as i32;
        let mut drawings: Vec<_> = self.series.iter().collect();
        if self.panel.stacked {
            drawings.reverse();
        }
        for (line, series) in drawings.into_iter().enumerate() {
            let y = (8 + LEGEND_LINE * line as i32) * scale;
            let swatch = [(2 * scale, y), (16 * scale, y + 13 * scale)];
            area.draw(&Rectangle::new(swatch, series.color.filled()))?;
            area.draw(&Rectangle::new(swatch, FAINT.stroke_width(self.scale)))?;
            let label = format!("{}: {} {}", series.label, number(mean(&series.values)), self.panel.unit);
            area.draw_text(&label, &font(13, self.scale), (23 * scale, y + 2 * scale))?;
        }
        let y = (12 + LEGEND_LINE * self.series.len() as i32) * scale;
        area.draw_text("(averages)", &font(12, self.scale).color(&FAINT), (23 * scale, y))?;
        Ok(())
    }
}

/// The series with their colours and names for people. Of those that add up, the smallest become one if there are too many.
fn drawings(panel: &values::Panel) -> Vec<Drawing<'_>> {
    let mut order: Vec<_> = (0..panel.series.len()).collect();
    order.sort_by(|a, b| mean(&panel.series[*b].values).total_cmp(&mean(&panel.series[*a].values)));
    let kept = if panel.stacked && order.len() > SERIES_MAX { SERIES_MAX - 1 } else { order.len() };
    let (mut shown, others) = (order[..kept].to_vec(), &order[kept..]);
    shown.sort_unstable();
    let each = shown.into_iter().enumerate().map(|(turn, place)| {
        let series = &panel.series[place];
        let (label, color) = look(&series.name).unwrap_or_else(|| (text::harmless(&series.name), IN_TURN[turn % SERIES_MAX]));
        Drawing { label, color, values: Cow::Borrowed(&series.values[..]) }
    });
    let mut drawings: Vec<_> = each.collect();
    if !others.is_empty() {
        let checkpoints = panel.series.iter().map(|series| series.values.len()).max().unwrap_or(0);
        let sum = |at: usize| others.iter().filter_map(|place| panel.series[*place].values.get(at).copied().flatten()).reduce(|a, b| a + b);
        let label = format!("{} others", others.len());
        drawings.push(Drawing { label, color: IN_TURN[SERIES_MAX - 1], values: (0..checkpoints).map(sum).collect() });
    }
    drawings
}

/// Names and colours of what is in several panels, and so must look alike in all.
fn look(name: &str) -> Option<(String, RGBColor)> {
    let (label, color) = match name {
        "unchanged" => ("unchanged", GREY),
        "free" => ("free", LIGHT_GREY),
        "zero" => ("zero", YELLOW),
        "mapped" => ("on a disk, by the map", GREEN),
        "on_disk" => ("on a disk, by hash", SKY),
        "known" => ("known", BLUE),
        "new" => ("new", VERMILION),
        "cache_clean" => ("page cache, clean", SKY),
        "cache_dirty" => ("page cache, dirty", ORANGE),
        "anonymous" => ("anonymous", VERMILION),
        "slab" => ("slab", PURPLE),
        "page_tables" => ("page tables", YELLOW),
        "kernel" => ("kernel", BLUE),
        "absent" => ("not the kernel's", BLACK),
        "full" => ("full", BLACK),
        "rest" => ("rest", LIGHT_GREY),
        "in this checkpoint" => ("in this checkpoint", BLUE),
        "in earlier ones" => ("in earlier ones", ORANGE),
        _ => return None,
    };
    Some((label.to_owned(), color))
}

fn mean(values: &[Option<f64>]) -> f64 {
    let (sum, count) = values.iter().flatten().fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}

/// Three digits or so: `0.042`, `4.21`, `42.1`, `1,024`.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        ..0.0995 => format!("{value:.3}"),
        ..9.995 => trimmed(format!("{value:.2}")),
        ..99.95 => trimmed(format!("{value:.1}")),
        _ => text::count(value.round() as u64),
    }
}

/// Without zeros behind the point.
fn trimmed(number: String) -> String {
    number.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_api::values::Series;

    #[test]
    fn numbers_are_short() {
        let numbers = [(0.0, "0"), (0.0421, "0.042"), (0.5, "0.5"), (4.2, "4.2"), (4.213, "4.21"), (50.0, "50"), (1023.7, "1,024")];
        for (value, expected) in numbers {
            assert_eq!(number(value), expected);
        }
    }

    #[test]
    fn the_smallest_of_too_many_become_one() {
        let series = |place: u32| Series { name: format!("s{place}"), values: vec![Some(f64::from(place)), None] };
        let mut panel =
            values::Panel { title: String::new(), unit: "ms".to_owned(), stacked: true, series: (1..=12).map(series).collect() };
        let found = drawings(&panel);
        let labels: Vec<_> = found.iter().map(|drawing| drawing.label.as_str()).collect();
        assert_eq!(labels, ["s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "4 others"]);
        assert_eq!(found[8].values[..], [Some(10.0), None]);
        panel.stacked = false;
        assert_eq!(drawings(&panel).len(), 12);
    }
}
