function comparison() {}
