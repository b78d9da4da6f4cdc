// Renders a chart as Helm does, for tests on machines without Helm: the same templates (text/template), the same
// functions (sprig) and the same YAML, from Debian's packages golang-go, golang-github-masterminds-sprig-dev and
// golang-k8s-sigs-yaml-dev. It knows what this chart uses: include, required, toYaml, and the objects Values, Chart,
// Release; neither dependencies nor hooks nor a cluster.
//
//	GO111MODULE=off GOPATH=/usr/share/gocode go run render.go CHART NAME NAMESPACE VALUES.yaml...
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

type table = map[string]interface{}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(path string) table {
	text, err := os.ReadFile(path)
	check(err)
	found := table{}
	check(yaml.Unmarshal(text, &found))
	return found
}

// over returns the tables with the second's values where both have one.
func over(under, top table) table {
	for key, value := range top {
		inner, isTable := value.(table)
		before, wasTable := under[key].(table)
		if isTable && wasTable {
			under[key] = over(before, inner)
		} else {
			under[key] = value
		}
	}
	return under
}

func main() {
	folder, name, namespace := os.Args[1], os.Args[2], os.Args[3]
	values := read(filepath.Join(folder, "values.yaml"))
	for _, path := range os.Args[4:] {
		values = over(values, read(path))
	}
	about := read(filepath.Join(folder, "Chart.yaml"))
	chart := table{"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]}
	top := table{
		"Values": values, "Chart": chart,
		"Release": table{"Name": name, "Namespace": namespace, "Service": "Helm"},
	}
	all := template.New("chart").Option("missingkey=zero")
	functions := sprig.TxtFuncMap()
	functions["include"] = func(called string, data interface{}) (string, error) {
		var into bytes.Buffer
		err := all.ExecuteTemplate(&into, called, data)
		return into.String(), err
	}
	functions["required"] = func(text string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, fmt.Errorf("%s", text)
		}
		return value, nil
	}
	functions["toYaml"] = func(value interface{}) string {
		text, err := yaml.Marshal(value)
		check(err)
		return strings.TrimSuffix(string(text), "\n")
	}
	all.Funcs(functions)
	paths, err := filepath.Glob(filepath.Join(folder, "templates", "*"))
	check(err)
	sort.Strings(paths)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		check(err)
		_, err = all.New(filepath.Base(path)).Parse(string(text))
		check(err)
	}
	for _, path := range paths {
		var into bytes.Buffer
		base := filepath.Base(path)
		check(all.ExecuteTemplate(&into, base, top))
		rendered := strings.ReplaceAll(into.String(), "<no value>", "")
		if strings.HasSuffix(base, ".yaml") && strings.TrimSpace(rendered) != "" {
			fmt.Printf("---\n%s\n", strings.TrimSpace(rendered))
		}
	}
}
