def render(f):
    return ""
