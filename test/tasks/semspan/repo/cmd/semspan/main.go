// Command semspan picks versions from its input.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"

	"example.org/semspan/internal/span"
	"example.org/semspan/internal/version"
)

const usage = "usage: semspan [--latest] SPAN < VERSIONS\n       semspan --sort < VERSIONS"

func main() {
	lines, err := run(os.Args[1:], os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, line := range lines {
		fmt.Println(line)
	}
}

func run(args []string, input io.Reader) ([]version.Version, error) {
	switch {
	case len(args) == 1 && args[0] == "--sort":
		versions, err := read(input)
		sort.SliceStable(versions, func(i, j int) bool { return version.Compare(versions[i], versions[j]) < 0 })
		return versions, err
	case len(args) == 2 && args[0] == "--latest":
		picked, err := pick(args[1], input)
		return latest(picked), err
	case len(args) == 1 && !strings.HasPrefix(args[0], "-"):
		return pick(args[0], input)
	}
	return nil, fmt.Errorf("%s", usage)
}

func pick(text string, input io.Reader) ([]version.Version, error) {
	wanted, err := span.Parse(text)
	if err != nil {
		return nil, err
	}
	versions, err := read(input)
	if err != nil {
		return nil, err
	}
	var picked []version.Version
	for _, v := range versions {
		if wanted.Holds(v) {
			picked = append(picked, v)
		}
	}
	return picked, nil
}

func latest(versions []version.Version) []version.Version {
	if len(versions) == 0 {
		return nil
	}
	best := versions[0]
	for _, v := range versions[1:] {
		if version.Compare(v, best) > 0 {
			best = v
		}
	}
	return []version.Version{best}
}

func read(input io.Reader) ([]version.Version, error) {
	var versions []version.Version
	scanner := bufio.NewScanner(input)
	for scanner.Scan() {
		text := strings.TrimSpace(scanner.Text())
		if text == "" {
			continue
		}
		v, err := version.Parse(text)
		if err != nil {
			return nil, err
		}
		versions = append(versions, v)
	}
	return versions, scanner.Err()
}
