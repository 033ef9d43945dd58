// One dashboard against the types of Grafana: `tsc` compiles this file with DASHBOARD in its place.
// JSON has no enumerations: where the types want one, its value as text or number is right.
import type * as grafana from '@grafana/schema';
import type { Dashboard, Panel, RowPanel, VariableModel } from './node_modules/@grafana/schema/dist/esm/raw/dashboard/x/dashboard_types.gen';
import type { Options as Heatmap } from './node_modules/@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type { Options as Stat } from './node_modules/@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type { Options as Table } from './node_modules/@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type { Options as Lines } from './node_modules/@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

type Plain<T> = T extends string
  ? `${T}`
  : T extends number | boolean | null | undefined
    ? T
    : T extends Array<infer U>
      ? Array<Plain<U>>
      : T extends object
        ? { [K in keyof T]: Plain<T[K]> }
        : T;

interface Target {
  refId: string;
  expr: string;
  datasource: { type: 'prometheus'; uid: string };
  format: 'time_series' | 'table' | 'heatmap';
  instant?: boolean;
  range?: boolean;
  legendFormat?: string;
}
type Fields<Custom> = Omit<grafana.FieldConfig, 'custom'> & { custom?: Partial<Custom> };
interface Shown<Kind extends string, Options, Custom> extends Omit<Panel, 'fieldConfig' | 'options' | 'targets' | 'type'> {
  type: Kind;
  title: string;
  description: string;
  fieldConfig: Omit<NonNullable<Panel['fieldConfig']>, 'defaults'> & {
    defaults: Fields<Custom> & { unit: string; noValue: string };
  };
  options: Partial<Options>;
  targets: Array<Target>;
}
type OurPanel =
  | RowPanel
  | Shown<'stat', Stat, {}>
  | Shown<'timeseries', Lines, grafana.GraphFieldConfig>
  | Shown<'table', Table, grafana.TableFieldOptions & { filterable: boolean }>
  | Shown<'heatmap', Heatmap, {}>;
// What a Prometheus annotation has beyond the general one.
type Annotation = grafana.AnnotationQuery & { expr: string; step: string; titleFormat: string; textFormat: string };
// What a variable of type `interval` has beyond the general one.
type Variable = VariableModel & { auto?: boolean; auto_count?: number; auto_min?: string };
type Ours = Omit<Dashboard, 'annotations' | 'panels' | 'templating'> & {
  annotations: { list: Array<Annotation> };
  panels: Array<OurPanel>;
  templating: { list: Array<Variable> };
};

export const dashboard: Plain<Ours> = DASHBOARD;
